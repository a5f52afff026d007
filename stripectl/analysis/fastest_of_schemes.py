"""A few schemes against each other: the fastest plan of each among comparable plans, at every length of a run."""

import itertools
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from stripectl.analysis.ranking import Ranking, rankings
from stripectl.core.lengths import at_lengths
from stripectl.results.measurement import Measurement


class FastestOfSchemes(NamedTuple):
    """The fastest plan of each scheme at a length, the fastest first, and the schemes that may be the fastest."""

    by_scheme: Mapping[str, Measurement]
    leaders: tuple[str, ...]


ByLength: TypeAlias = Mapping[int, FastestOfSchemes]  # the shortest length first


def fastest_alike(
    members: Iterable[Measurement], schemes: Sequence[str], alike: Callable[[Measurement], Hashable]
) -> dict[str, Measurement] | None:
    """The first plan of each scheme that computes a sequence on several devices, among the first plans that are `alike`
    and have two or more schemes. `members` are in order, the fastest first."""
    groups: dict[Hashable, dict[str, Measurement]] = {}
    for m in members:
        if m.plan.scheme in schemes and m.plan.sequence_devices > 1:
            groups.setdefault(alike(m), {}).setdefault(m.plan.scheme, m)
    return next((each for each in groups.values() if len(each) > 1), None)


def fastest_by_length(
    measurements: Sequence[Measurement],
    schemes: Sequence[str],
    which: Callable[[Ranking], bool],
    alike: Callable[[Measurement], Hashable] = lambda m: None,
) -> list[ByLength]:
    """The comparison for each workload (without its length) and target with two or more of the schemes, by the
    strongest method; `which` chooses the workloads, `alike` the plans that may be compared."""
    groups: dict[Hashable, dict[int, FastestOfSchemes]] = {}
    for ranking in rankings(measurements):
        if which(ranking) and (found := fastest_alike(ranking.rivals, schemes, alike)):
            first = next(iter(found.values()))
            leaders = (name for name, m in found.items() if m is first or ranking.too_close(first, m))
            key = ranking.workload.without("seq_len"), ranking.best.target, ranking.best.method
            groups.setdefault(key, {})[ranking.workload.seq_len] = FastestOfSchemes(found, tuple(leaders))
    return [dict(sorted(lengths.items())) for lengths in groups.values()]


def leaders_sentence(by_length: ByLength, phrase: Callable[[ByLength], str]) -> str:
    """Which scheme is the fastest at which lengths; `phrase` says it of neighbouring lengths with the same leaders."""
    said = list[str]()
    for _, group in itertools.groupby(by_length.items(), key=lambda each: sorted(each[1].leaders)):
        same = dict(group)
        said.append(f"{at_lengths(list(same))} {phrase(same)}")
    one = next(iter(next(iter(by_length.values())).by_scheme.values()))
    return f"{one.workload.passes} on {one.target}, {one.method}: {'; '.join(said)}."
