"""Load balance: the tiles of every device and round, one heat map per scheme and layout.

As Figures 2 and 3 of Brandon et al. 2023, from the counted tiles.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from stripectl.core.lengths import format_length
from stripectl.reporters.html.charts import PANEL, Chart, ChartGroup, Section, chart_table, section
from stripectl.reporters.html.vega_lite import draw_file
from stripectl.results.measurement import Measurement

TITLE = "Which device works in which round?"
INTRO = (
    "Tiles that a device computes in each round of the forward pass. A round ends when its slowest device ends, so a "
    "device waits where its cell is emptier than others in the same column. All layouts share one scale."
)
ABSENT = "No plan with several devices has counted tiles in this run."
MAX_GROUPS_AND_CHARTS = 2, 6  # groups, and charts of each
MAX_CELLS = 16  # devices or rounds that are drawn; of more, every k-th
MIN_CELL, MAX_CELL, MAX_TALL, MIN_NUMBERED_PIXELS = 14, 40, 30, 30  # pixels of a cell, and of a cell with a number
FAINTEST, FULLEST = 0.12, 0.95  # opacity of cells
DARK = 0.6  # share of the most tiles above which a number has the other text colour


class Cells(NamedTuple):
    """All cells with equal counts, because one mark per cell would make a page of megabytes; `share` is their
    opacity, 0 without work."""

    path: str
    share: float


class Number(NamedTuple):
    """The count in a cell; `dark`: its cell is dark."""

    x: float
    y: float
    words: str
    dark: bool


@dataclass(frozen=True)
class WorkMap:
    """Devices down with their counts, rounds across; `most` is the largest count of all charts with one scale."""

    rounds: Sequence[int]
    rows: Sequence[tuple[int, Sequence[int]]]
    most: int
    kind: ClassVar = "work"

    def draw(self, width: int) -> str:
        wide = max(MIN_CELL, min(MAX_CELL, (min(width, PANEL) - 50) // max(len(self.rounds), 1)))
        tall = min(wide, MAX_TALL)
        places: dict[int, list[tuple[int, int]]] = {}  # the corners of cells in pixels, by their count
        for down, (_, counts) in enumerate(self.rows):
            for across, count in enumerate(counts):
                places.setdefault(count, []).append((across * wide + 1, down * tall + 1))
        box = f"h{wide - 2}v{tall - 2}h{2 - wide}Z"
        cells = [
            Cells(
                "".join(f"M{x},{y}{box}" for x, y in found),
                count and FAINTEST + (FULLEST - FAINTEST) * count / self.most,
            )
            for count, found in places.items()
        ]
        numbers = [
            Number(x + wide / 2 - 1, y + tall / 2 - 1, _short(count), count > DARK * self.most)
            for count, found in places.items()
            for x, y in found
            if count and wide >= MIN_NUMBERED_PIXELS
        ]
        return draw_file(
            "work",
            {"cells": cells, "numbers": numbers},
            {"width": wide * len(self.rounds), "height": tall * len(self.rows)},
            rounds=self.rounds,
            devices=[device for device, _ in self.rows],
            wide=wide,
            tall=tall,
        )


def of_run(shown: Sequence[Measurement]) -> Section:
    """One chart per scheme and layout; charts of one workload and mesh share a scale. Both passes use the same ring, so
    one chart is drawn for both; with several tiles it shows the fastest plan."""
    groups: dict[tuple[str, str], dict[tuple[str, str], Measurement]] = {}
    for m in shown:
        if m.status != "ok" or not m.tiles or not m.tiles.per_round or m.devices == 1:
            continue
        plan, work = m.plan, m.workload
        mesh = ", ".join(f"{axis}={size}" for axis, size in plan.axes.items())
        group = groups.setdefault((f"{format_length(work.seq_len)} tokens, {m.layers[0].workload.mask} mask", mesh), {})
        known = group.setdefault((plan.scheme, plan.layout), m)
        if known.workload == work and (m.median_s or 0.0) < (known.median_s or 0.0):
            group[plan.scheme, plan.layout] = m
    made = list[ChartGroup]()
    for (title, mesh), group in groups.items():
        counts = [(m, m.tiles.per_round) for _, m in sorted(group.items(), key=_as_in_papers) if m.tiles]
        most = max(max(map(max, per_round)) for _, per_round in counts)
        made.append({"title": f"{title}, {mesh}", "charts": [_chart(m, each, most) for m, each in counts]})
    return section("work", "Work", TITLE, INTRO, made, ABSENT, MAX_GROUPS_AND_CHARTS)


def _as_in_papers(item: tuple[tuple[str, str], Measurement]) -> tuple[bool, str, str]:
    """A sort key that puts the layouts of the ring first."""
    scheme, layout = item[0]
    return scheme != "ring", scheme, layout


def _chart(m: Measurement, per_round: Sequence[Sequence[int]], most: int) -> Chart:
    plan = m.plan
    devices, rounds = len(per_round), len(per_round[0])
    down, across = (-(-count // MAX_CELLS) for count in (devices, rounds))
    critical = sum(max(column) for column in zip(*per_round, strict=True))
    total = sum(map(sum, per_round))
    busy = total / (devices * critical) if critical else None
    shown, rows = (
        list(range(0, rounds, across)),
        [(at, list(per_round[at][::across])) for at in range(0, devices, down)],
    )
    note = (
        f"{total:,} tiles, {critical:,} on the critical path; devices work "
        f"{'n/a' if busy is None else f'{busy:.0%}'} of the time."
    )
    thinned = [f"1 of every {step} {what}" for what, step in (("devices", down), ("rounds", across)) if step > 1]
    note += f" The figure shows {' and '.join(thinned)}." * bool(thinned)
    return Chart(
        TITLE,
        f"{plan.scheme}/{plan.layout}, tiles of {plan.tile}",
        ["counted"],
        f"Tiles by device ({devices}) and round ({rounds}), forward.",
        chart_table(
            ("device", *(f"round {at}" for at in shown)),
            [(str(device), *(f"{count:,}" for count in counts)) for device, counts in rows],
            ("device",),
        ),
        WorkMap(shown, rows, most),
        note,
        seq_len=m.workload.seq_len,
    )


def _short(count: int) -> str:
    return str(count) if count < 10_000 else f"{count / 1000:.3g}k"
