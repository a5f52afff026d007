"""Common parts of a report's charts: their form as plain data, their colours, and the drawing of Vega-Lite as static
SVG.

A chart's content is a dict, so that the page can print it as a table and a test can assert on it. Text and lines take
the page's own colour, so a chart is legible in light and dark; every colour comes with a shape or a word.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NotRequired, TypeAlias, TypedDict

from stripectl.core.method import METHODS
from stripectl.reporters.html.drawing import draw_svg
from stripectl.util.files import utf8
from stripectl.util.units import NOTHING

# Blue, vermilion and green of Okabe and Ito 2008, and three more colours: style.css has them for light and dark pages,
# all with a contrast of 3:1.
COLOURS = tuple(f"var(--c{number})" for number in range(1, 7))
QUIET = "var(--quiet)"  # of marks that are not the answer
SHAPES = ("circle", "square", "diamond", "triangle-up", "triangle-down", "cross")
METHOD_SHAPES = SHAPES[: len(METHODS)]
INK = "currentColor"
# CSS pixels of a drawing: alone in its figure on a wide and on a narrow screen, and as one of two and of
# several panels.
WIDE, NARROW, PANEL, SMALL_PANEL = 720, 332, 440, 370
FONT_SIZE = 11
AXIS_STYLE = {
    "labelColor": INK,
    "titleColor": INK,
    "titleFontWeight": "normal",
    "labelFontSize": FONT_SIZE,
    "titleFontSize": FONT_SIZE,
}
FAINT = {"domain": False, "ticks": False, "gridColor": INK, "labelPadding": 6, "titlePadding": 8}
LOOK = {
    "background": "transparent",
    "font": "sans-serif",
    "padding": 2,
    "view": {"stroke": None},
    "axis": {**AXIS_STYLE, **FAINT, "gridOpacity": 0.12},
    "axisQuantitative": {"labelLimit": 0},  # numbers are short, and their measuring takes a third of the time
    "legend": {**AXIS_STYLE, "titleOrient": "left"},
}
TIP = "\u25b8"  # begins the text of a mark that a reader sees by pointing at it
SUBPIXEL_DIGITS = re.compile(r"(?<=\.\d\d)\d+(?!\d*e)")  # digits of a pixel that are not visible
TAG = re.compile(r"<[^>]*>")
EMPTY = re.compile(r'<path [^>]* d=""[^>]*/>')
TIPS = re.compile(rf' aria-label="{TIP}([^"]*)"')
IDLE = re.compile(
    r' (?:class|role|aria-[a-z]+|pointer-events|font-family|xmlns:xlink|version)="[^"<>&]*"'
    r'| aria-label="[^"]*"'
    r'| (?:opacity|stroke-width|fill-opacity)="1"| stroke-width="0"'
)
USUAL = {  # as in style.css for every drawing
    "text": re.compile(rf' (?:font-size="{FONT_SIZE}px"|fill="currentColor")'),
    "line": re.compile(r' stroke="currentColor"'),
}
INVISIBLE = re.compile(r'<path(?: transform="[^"]*")? d="[^"]*"(?: transform="[^"]*")?/>')
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


class Chart(dict[str, Any]):
    """A chart of the page: `kind` names its drawing; keys that `chart` does not set are the drawing's arguments."""


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


Channel: TypeAlias = Mapping[str, object]  # what an encoding channel of a mark shows, in the form of Vega-Lite
Drawing: TypeAlias = dict[str, object]  # in the form of Vega-Lite


@dataclass(frozen=True)
class ChartLayer:
    """Marks for rows of data, in the form of Vega-Lite; each method returns a layer with more of this form."""

    rows: Sequence[Mapping[str, Any]]
    tests: tuple[str, ...] = ()
    look: Mapping[str, object] = field(default_factory=dict[str, object])
    channels: Mapping[str, Channel] = field(default_factory=dict[str, Channel])

    def mark(self, kind: str, **look: object) -> "ChartLayer":
        return replace(self, look={"type": kind, **look})

    def where(self, test: str) -> "ChartLayer":
        """Only the rows that pass a test, which is an expression of Vega."""
        return replace(self, tests=(*self.tests, test))

    def encode(self, **channels: Channel) -> "ChartLayer":
        return replace(self, channels={**self.channels, **channels})

    @property
    def form(self) -> Drawing:
        data, filters = {"values": self.rows}, [{"filter": test} for test in self.tests]
        made: Drawing = {"data": data, "mark": self.look, "encoding": self.channels}
        return made | ({"transform": filters} if filters else {})


ChartRow: TypeAlias = dict[str, Any]  # a row of data that a drawing reads, by the names of its fields
PageContext: TypeAlias = dict[str, object]  # what a template shows, by name: it is read by Jinja alone


def chart(
    kind: str,
    title: str,
    subject: str,
    methods: Iterable[str],
    label: str,
    table: ChartTable,
    note: str = "",
    more: Sequence[MoreTable] = (),
    **shown: Any,
) -> Chart:
    """A chart: `kind` names its drawing, `title` is the question that it answers, `subject` the plan or workload,
    `label` the text for a screen reader, `table` the content as numbers, `more` further tables {title, table, open},
    and `shown` the arguments of the drawing."""
    known = set(methods)
    return Chart(
        kind=kind,
        title=title,
        subject=subject,
        methods=[*(each for each in METHODS if each in known), *sorted(known - {*METHODS})],
        label=label,
        table=table,
        note=note,
        more=list(more),
        **shown,
    )


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
    longest = sorted(range(len(groups)), key=lambda at: -max(each.get("seq_len", 0) for each in groups[at]["charts"]))
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
        titles.setdefault(part["group"], []).append(part)
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


def plot(rows: Iterable[ChartRow]) -> ChartLayer:
    """The rows as data of a drawing."""
    return ChartLayer(tuple(rows))


def layered(layers: Iterable[ChartLayer], width: object, height: object) -> Drawing:
    """Layers on each other; a size is in pixels, or {"step": pixels of each row}."""
    return {"layer": [layer.form for layer in layers], "width": width, "height": height}


def above(upper: Drawing, lower: Drawing, spacing: float) -> Drawing:
    return {"vconcat": [upper, lower], "spacing": spacing}


def svg(drawn: Drawing) -> str:
    """The drawing as text, in the page's colours; marks with a text keep it as `data-tip`."""
    text = draw_svg(drawn | {"config": LOOK})
    return _without_idle_groups(TAG.sub(_slim, EMPTY.sub("", text)))


def _slim(tag: re.Match[str]) -> str:
    """A tag without attributes that have no visible effect."""
    text = IDLE.sub("", TIPS.sub(r' data-tip="\1"', tag[0]))
    if usual := USUAL.get(text[1:5]):
        text = usual.sub("", text)
    if INVISIBLE.fullmatch(text):
        return ""
    return re.sub(r' (?:d|transform)="[^"]*"', lambda found: SUBPIXEL_DIGITS.sub("", found[0]), text)


def _without_idle_groups(text: str) -> str:
    """The text without groups that have no attribute and only nest."""
    idle: list[bool] = []

    def kept(tag: re.Match[str]) -> str:
        if tag[0].startswith("<g") and tag[0].endswith("/>"):
            return ""
        if tag[0].startswith("<g"):
            idle.append(tag[0] == "<g>")
            return "" if idle[-1] else tag[0]
        if tag[0] == "</g>":
            return "" if idle.pop() else tag[0]
        return tag[0]

    return TAG.sub(kept, text)


def tip(words: str) -> str:
    """The text of a mark, for its `description`."""
    return TIP + utf8(words)


def channel(shorthand: str, **form: object) -> Channel:
    """A channel that shows a field, such as `value:Q`: Q is quantitative, N nominal and O ordinal."""
    name, _, kind = shorthand.partition(":")
    return {"field": name, "type": {"Q": "quantitative", "N": "nominal", "O": "ordinal"}[kind], **form}


def either(test: str, yes: str | float, no: str | float) -> Channel:
    """The value channel of a mark that depends on a test of its datum."""
    return {"value": no, "condition": {"test": test, "value": yes}}


def tip_channel() -> Channel:
    """The channel of a mark's text."""
    return channel("tip:N")


def method_shape() -> Channel:
    """The channel that distinguishes methods."""
    return channel("method:N", scale={"domain": METHODS, "range": METHOD_SHAPES}, legend=None)
