"""The charts of a report as data: each has typed rows and draws itself (`Drawing`), so that the page can print it as a
table and a test can assert on it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple, NotRequired, Protocol, TypeAlias, TypedDict

from markupsafe import Markup

from stripectl.core.method import METHODS
from stripectl.util.units import NOTHING

# CSS pixels of a drawing: alone in its figure on a wide and on a narrow screen, and as one of two and of
# several panels.
WIDE, NARROW, PANEL, SMALL_PANEL = 720, 332, 440, 370
MAX_SERIES = 6  # colours and shapes of a file of `templates/charts`
WHY_NOT = {  # why a column of a chart's table says n/a
    "95 % interval": "Only a plan that ran several times has an interval.",
    "bound": "The bound is known only over the contiguous layout with the same scheme, mesh and tile.",
    "published": "Figures are published only for the paper's models, machines, meshes and lengths.",
    "of": "The size of a device's memory is not known here.",
    "time": "A plan that was refused or failed has no time.",
    "over the best": "A plan that was refused or failed has no time.",
    "its error": "The plan that speed-ups are relative to has no speed-up itself.",
    "speed-up": "One device, and the plan that others are compared with, have no speed-up.",
    "memory": "The memory of a plan that failed, or was refused for another reason, is not known.",
    "overlap": "Only a plan that communicates has an overlap.",
    "rate": "A rate needs the bytes and the time of a transfer.",
    "sent": "The program does not say what it sends.",
    "change": "A plan without a time in one run has no change.",
    "over before": "The first run, and a run without a value, have no earlier level.",
    "commit": "A run outside of a git checkout has no commit.",
}
MAX_TABLE_ROWS = 64  # of a table
MAX_GROUPS, MAX_CHARTS = 4, 12  # workloads of a section that are drawn, and charts of each


class ChartTable(TypedDict):
    """Rows of text with the names of their columns: which columns are numbers, why cells say n/a, and the number of
    rows that are not shown."""

    columns: list[str]
    numbers: list[bool]
    rows: list[list[str]]
    lacking: list[str]
    left_out: int


class MoreTable(TypedDict):
    """A further table of a chart."""

    title: str
    table: ChartTable
    open: bool


class Rule(NamedTuple):
    """A value that applies to a whole chart, with its words."""

    value: float
    words: str


class Drawing(Protocol):
    """The rows and the arguments of a drawing. `kind` is its class in style.css."""

    kind: ClassVar[str]

    def draw(self, width: int) -> str:
        """SVG; empty where nothing can be drawn."""
        ...


@dataclass
class Chart:
    """A chart of the page: `title` is the question that it answers, `subject` the plan or workload, `label` the text
    for a screen reader, `table` the content as numbers, `more` further tables, and `group` the title of the charts with
    which it is shown. `wide` is its width alone on a wide screen; with `one_size` one drawing is for all screens. The
    page sets `drawings`, SVGs by the class of screens that show them, and `span`: it needs a whole row."""

    title: str
    subject: str
    methods: Sequence[str]
    label: str
    table: ChartTable
    drawing: Drawing
    note: str = ""
    more: Sequence[MoreTable] = ()
    group: str = ""
    seq_len: int = 0
    wide: int = WIDE
    one_size: bool = False
    drawings: list[tuple[str, Markup]] = field(default_factory=list[tuple[str, Markup]], compare=False)
    span: bool = False

    def __post_init__(self) -> None:
        known = set(self.methods)
        self.methods = [*(each for each in METHODS if each in known), *sorted(known - {*METHODS})]

    @property
    def kind(self) -> str:
        return self.drawing.kind


class ChartGroup(TypedDict):
    """Charts of one workload."""

    title: str
    charts: list[Chart]
    left_out: NotRequired[int]
    notes: NotRequired[list[str]]


class Section(TypedDict):
    """A section of the page: its groups of charts, or in `absent` the reason why it has no chart."""

    id: str
    nav: str
    panels: int
    title: str
    intro: str
    groups: list[ChartGroup]
    left_out: int
    absent: str


PageContext: TypeAlias = dict[str, object]  # what a template shows, by name: it is read by Jinja alone


def section(
    anchor: str,
    nav: str,
    title: str,
    intro: str,
    groups: Sequence[ChartGroup],
    absent: str,
    most: tuple[int, int] = (MAX_GROUPS, MAX_CHARTS),
) -> Section:
    """A section of the page: groups of charts, each {title, charts} and perhaps notes; `absent` says why there are
    none, and what to run. `most` is the number of groups that are drawn, the longest sequences, which come
    first, and the number of charts of each."""
    longest = sorted(range(len(groups)), key=lambda at: -max(each.seq_len for each in groups[at]["charts"]))
    drawn = [groups[at] for at in longest[: most[0]]]
    shown: list[ChartGroup] = [
        {
            "title": group["title"],
            "charts": group["charts"][: most[1]],
            "left_out": len(group["charts"][most[1] :]),
            "notes": group.get("notes") or [],
        }
        for group in drawn
    ]
    return {
        "id": anchor,
        "nav": nav,
        "panels": max((len(group["charts"]) for group in shown), default=0),
        "title": title,
        "intro": intro,
        "groups": shown,
        "left_out": len(groups[most[0] :]),
        "absent": absent,
    }


def not_drawn(number: int) -> str:
    """A clause about plans or charts that a figure omits."""
    return f"{number:,} more {'is' if number == 1 else 'are'} not drawn"


def grouped_by(parts: Iterable[Chart]) -> list[ChartGroup]:
    """Charts with the same `group` together, in the order of their first occurrence."""
    titles: dict[str, list[Chart]] = {}
    for part in parts:
        titles.setdefault(part.group, []).append(part)
    return [{"title": title, "charts": members} for title, members in titles.items()]


def chart_table(
    names: Sequence[str],
    rows: Iterable[Sequence[str]],
    words: Iterable[str],
    total: int = 0,
    most: int = MAX_TABLE_ROWS,
) -> ChartTable:
    """Rows with the names of their columns; columns in `words` are not numbers. `total` is the full number of rows,
    where these are a part."""
    found, words = [list(row) for row in rows], set(words)
    shown = found[:most]
    return {
        "columns": list(names),
        "numbers": [name not in words for name in names],
        "rows": shown,
        "lacking": [WHY_NOT[name] for at, name in enumerate(names) if name in WHY_NOT and _lacks(shown, at)],
        "left_out": max(total, len(found)) - len(shown),
    }


def _lacks(rows: Sequence[Sequence[str]], at: int) -> bool:
    return any(row[at] == NOTHING for row in rows)
