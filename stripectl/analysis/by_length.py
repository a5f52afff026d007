"""The best scheme at each sequence length.

There is one comparison for every workload (without its length) and target: the best plan of every scheme at every
length of a run. The ranking decides the winner. A scheme uses the strongest method that timed any of its plans, and
its ratio is its time over the winner's by the same method, because measured and simulated times are not comparable. A
plan that does not shard the sequence belongs to no scheme, because all schemes are equal there.
"""

import itertools
import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from stripectl.analysis.ranking import Ranking, contenders, margin_of, rankings, strength
from stripectl.core.lengths import at_lengths, format_length
from stripectl.core.method import METHODS
from stripectl.core.plan import UNSHARDED
from stripectl.core.workload import Workload
from stripectl.errors import BadInput
from stripectl.hardware.target import TargetName
from stripectl.results.labels import workload_label
from stripectl.results.measurement import Measurement
from stripectl.results.measurement_set import refusals_and_failures

QUESTION = "Which scheme wins at which length?"
MAX_LEADERS = 3  # that are named; of more, their number


@dataclass(frozen=True)
class SchemeResult:
    """The result of a scheme at a length: its best plan; its time over the winner's by the same method, where the
    winner has such a time; whether it may be as fast; and the plans without a time, grouped by reason: the strongest
    method first, and within a method in the order of the run, which begins with the default mesh."""

    best: Measurement | None
    ratio: float | None
    close: bool
    refused: Sequence[Sequence[Measurement]]


@dataclass(frozen=True)
class LengthResult:
    """A length of a comparison: the result of each scheme, by name, and all plans without a time. `winner` is None
    where no plan has a time."""

    seq_len: int
    cells: Mapping[str, SchemeResult]
    winner: str | None
    refused: Sequence[Sequence[Measurement]]

    @property
    def best(self) -> Measurement | None:
        return self.cells[self.winner].best if self.winner else None

    @property
    def runner_up(self) -> str | None:
        """The next scheme, where one can be compared: the fastest other scheme that the strongest method timed."""
        known = [
            (strength(cell.best.method), cell.ratio, name) for name, cell in self.others() if cell.best and cell.ratio
        ]
        return min(known)[2] if known else None

    @property
    def leaders(self) -> tuple[str, ...]:
        """The winner, and schemes that may be as fast."""
        return (*((self.winner,) if self.winner else ()), *(name for name, cell in self.others() if cell.close))

    def others(self) -> Iterable[tuple[str, SchemeResult]]:
        return ((name, cell) for name, cell in self.cells.items() if name != self.winner)


@dataclass(frozen=True)
class SchemesByLength:
    """Schemes at two or more lengths, the shortest first; schemes are ordered by how close they come to
    winning."""

    workload: Workload  # at the shortest length
    target: TargetName
    schemes: Sequence[str]
    lengths: Sequence[LengthResult]

    @property
    def title(self) -> str:
        """The workload with its shortest and its longest length, and the target."""
        first, last = (format_length(self.lengths[at].seq_len) for at in (0, -1))
        return f"{workload_label(self.workload, f'{first} to {last}')} on {self.target}"

    @property
    def methods(self) -> list[str]:
        """The methods of the best plans, the strongest first."""
        used = {cell.best.method for each in self.lengths for cell in each.cells.values() if cell.best}
        return [name for name in METHODS if name in used]

    @property
    def answer(self) -> str:
        """Which scheme wins where, in one sentence; neighbouring lengths with the same answer are merged."""
        said = list[str]()
        for leaders, group in itertools.groupby(self.lengths, key=lambda each: each.leaders):
            said.append(f"{_named(leaders)} {at_lengths([each.seq_len for each in group])}")
        return f"{'; '.join(said)}."


def _named(leaders: Sequence[str]) -> str:
    if not leaders:
        return "no plan has a time"
    who = " or ".join(leaders)
    if len(leaders) > MAX_LEADERS:
        who = f"{leaders[0]} or one of {len(leaders) - 1} others"
    return f"{who} (too close to tell)" if len(leaders) > 1 else who


def schemes_by_length(measurements: Iterable[Measurement]) -> list[SchemesByLength]:
    """The comparisons of a run, in its order: for each workload and target with two or more lengths and two or more
    schemes that have a time."""
    groups: dict[Hashable, list[Measurement]] = {}
    for m in measurements:
        if scheme_of(m):
            groups.setdefault((m.workload.without("seq_len"), m.target), []).append(m)
    return [made for members in groups.values() if (made := _contest(members))]


def scheme_of(m: Measurement) -> str | None:
    """The scheme that shards the sequence; None for a plan that this stripectl cannot read."""
    try:
        return m.plan.sequence_scheme
    except (BadInput, ValueError):
        return None


def _contest(members: Sequence[Measurement]) -> SchemesByLength | None:
    by_length = {ranking.workload.seq_len: ranking for ranking in rankings(members)}
    timed = {scheme_of(m) for m in contenders(members) if m.devices > 1}
    if len(by_length) < 2 or len(timed - {UNSHARDED}) < 2:
        return None
    here: dict[int, list[Measurement]] = {}
    for m in members:
        here.setdefault(m.workload.seq_len, []).append(m)
    lengths = [_length(seq_len, here[seq_len], by_length.get(seq_len)) for seq_len in sorted(here)]
    names = _in_order(lengths)
    ordered = [
        replace(each, cells={name: each.cells[name] for name in names if name in each.cells}) for each in lengths
    ]
    return SchemesByLength(replace(members[0].workload, seq_len=lengths[0].seq_len), members[0].target, names, ordered)


def _length(seq_len: int, members: Sequence[Measurement], ranking: Ranking | None) -> LengthResult:
    by_scheme: dict[str, list[Measurement]] = {}
    for m in members:
        by_scheme.setdefault(scheme_of(m) or UNSHARDED, []).append(m)
    timed = contenders(members)
    cells = {name: _cell(name, those, timed, ranking) for name, those in by_scheme.items()}
    return LengthResult(seq_len, cells, scheme_of(ranking.best) if ranking else None, _commonest(members))


def _cell(name: str, own: Sequence[Measurement], timed: Sequence[Measurement], ranking: Ranking | None) -> SchemeResult:
    """The result of a scheme's plans; `timed` are the contenders of all schemes."""
    refused = sorted(refusals_and_failures(own), key=lambda those: strength(those[0].method))
    wide = [
        m
        for m in timed
        if (scheme_of(m) or UNSHARDED) == name and (m.devices > 1 or (ranking and ranking.best.devices == 1))
    ]
    best = min(wide, key=lambda m: (strength(m.method), m.median_s or 0.0), default=None)
    if best is None or ranking is None:
        return SchemeResult(None, None, False, refused)
    first = next((m for m in timed if (m.identity, m.method) == (ranking.best.identity, best.method)), None)
    if first is None:
        return SchemeResult(best, None, False, refused)
    return SchemeResult(best, margin_of(first, best) + 1, ranking.too_close(first, best), refused)


def _commonest(members: Iterable[Measurement]) -> list[list[Measurement]]:
    return sorted(refusals_and_failures(members), key=len, reverse=True)


def _in_order(lengths: Sequence[LengthResult]) -> list[str]:
    """Schemes by the first length that they win, then by the mean of their ratios; schemes without a time come last."""
    winners = [each.winner for each in lengths]

    def place(name: str) -> tuple[float, float]:
        ratios = [cell.ratio for each in lengths if (cell := each.cells.get(name)) and cell.ratio]
        mean = sum(map(math.log, ratios)) / len(ratios) if ratios else math.inf
        return (winners.index(name) if name in winners else len(winners)), mean

    return sorted({name: 0 for each in lengths for name in each.cells}, key=place)
