"""The best scheme by length, as regions: lengths from left to right, one strip per pass, one region per answer. Schemes
that tie share a region, which has both names."""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from stripectl.analysis.by_length import QUESTION, SchemesByLength
from stripectl.core.lengths import format_length
from stripectl.reporters.html.charts import MAX_SERIES, Chart, chart_table
from stripectl.reporters.html.vega_lite import draw_file, tip

TITLE = "Which scheme to use, by length"
COLUMNS = ("pass", "from", "to", "scheme")
TICK_PIXELS = 70  # of a length


class SchemeRegion(NamedTuple):
    """An answer for a pass and the lengths from `low` to `high`, between which the run has those from `first` to
    `last`; `brief` is its name where there is little room."""

    passes: str
    first: str
    last: str
    low: float
    high: float
    middle: float
    scheme: str
    name: str
    brief: str
    tip: str


@dataclass(frozen=True)
class Regions:
    """Regions over the lengths of a run; `schemes` are in the order of their colours."""

    regions: Sequence[SchemeRegion]
    lengths: Sequence[int]
    schemes: Sequence[str]
    passes: Sequence[str]
    kind: ClassVar = "regions"

    def draw(self, width: int) -> str:
        return draw_file(
            "regions",
            {"regions": self.regions},
            {"width": width - 20},
            ends=[min(each.low for each in self.regions), max(each.high for each in self.regions)],
            ticks=self.lengths[:: -(-len(self.lengths) // max(2, width // TICK_PIXELS))],
            schemes=self.schemes,
            passes=self.passes,
        )


def scheme_map(contests: Sequence[SchemesByLength]) -> Chart:
    """The regions of comparisons that differ only in their pass."""
    regions = [region for contest in contests for region in _regions(contest)]
    lengths = sorted({each.seq_len for contest in contests for each in contest.lengths})
    schemes = list(dict.fromkeys(region.scheme for region in regions))[:MAX_SERIES]
    return Chart(
        QUESTION,
        TITLE,
        [each.best.method for contest in contests for each in contest.lengths if each.best],
        " ".join(f"{contest.workload.passes}: {contest.answer}" for contest in contests),
        chart_table(COLUMNS, [(each.passes, each.first, each.last, each.name) for each in regions], COLUMNS),
        Regions(regions, lengths, schemes, [contest.workload.passes for contest in contests]),
        "Regions end halfway between two lengths of the run. The table names the schemes of a tie.",
    )


def _regions(contest: SchemesByLength) -> Iterator[SchemeRegion]:
    lengths = [each.seq_len for each in contest.lengths]
    steps = [1 / math.sqrt(lengths[1] / lengths[0]), *(math.sqrt(b / a) for a, b in itertools.pairwise(lengths))]
    steps.append(steps[-1])
    at, passes = 0, contest.workload.passes
    for leaders, group in itertools.groupby(contest.lengths, key=lambda each: each.leaders):
        count = len(list(group))
        first, last = lengths[at], lengths[at + count - 1]
        names = " or ".join(leaders[:2]) + " ..." * (len(leaders) > 2) if leaders else "no plan has a time"
        span = format_length(first) + (f" to {format_length(last)}" if count > 1 else "")
        yield SchemeRegion(
            passes=passes,
            first=format_length(first),
            last=format_length(last),
            low=first * steps[0] if at == 0 else first / steps[at],
            high=last * steps[at + count],
            middle=math.sqrt(first * last),
            scheme=leaders[0] if leaders else "",
            name=names,
            brief="tie" if len(leaders) > 1 else names,
            tip=tip(f"{passes}, {span} tokens: {names}"),
        )
        at += count
