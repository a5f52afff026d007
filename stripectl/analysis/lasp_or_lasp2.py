"""LASP or LASP-2: which way to exchange states of linear attention is faster at which length, and why. LASP has N-1
hops that wait for each other, while the device computes; LASP-2 has one collective, which may use both directions."""

import contextlib
import itertools
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from stripectl.analysis.ranking import Ranking, margin_of, rankings
from stripectl.core.workload import STEP, at_lengths, format_length
from stripectl.costs.cost_model import COUNTING
from stripectl.results.case import flags_text
from stripectl.results.measurement import Measurement
from stripectl.simulate.simulation import simulate
from stripectl.util.units import duration, nbytes

CHAIN, GATHER = "lasp", "lasp2"


class ChainAndGather(NamedTuple):
    """The fastest plan of each, on one mesh with the same options, and whether they are too close to tell."""

    chain: Measurement
    gather: Measurement
    close: bool


def chain_and_gather(measurements: Iterable[Measurement]) -> list[str]:
    """One line for every workload (without its length) with a constant decay that both schemes computed on a mesh of
    several devices, by the strongest method."""
    groups: dict[Any, dict[int, ChainAndGather]] = {}
    for ranking in rankings(list(measurements)):
        if not ranking.workload.gated and (pair := pair_plans(ranking)):
            key = ranking.workload.without("seq_len"), ranking.best.target, ranking.best.method
            groups.setdefault(key, {})[ranking.workload.seq_len] = pair
    found = list[str]()
    for lengths in groups.values():
        both = dict(sorted(lengths.items()))
        with contextlib.suppress(KeyError, TypeError, ValueError, AttributeError):  # a run may come from anybody
            found.append(f"{winner_sentence(both)} {sent_by_both(both[max(both)])}".strip())
    return found


def pair_plans(ranking: Ranking) -> ChainAndGather | None:
    """The pair on the fastest mesh, and with the fastest options, that both have."""
    options: dict[Any, dict[str, Measurement]] = {}
    for m in ranking.rivals:
        plan = m.plan
        if plan.scheme in (CHAIN, GATHER) and plan.shards > 1:
            alike = replace(plan, scheme=CHAIN, tile=None, backward=None), flags_text(m.flags)
            options.setdefault(alike, {}).setdefault(plan.scheme, m)
    found = next((each for each in options.values() if len(each) == 2), None)
    return ChainAndGather(found[CHAIN], found[GATHER], ranking.too_close(*found.values())) if found else None


def winner_sentence(both: Mapping[int, ChainAndGather]) -> str:
    """Which of the two is faster at which lengths, and the largest difference."""
    said = list[str]()
    for name, group in itertools.groupby(both.items(), key=lambda each: faster_plan(each[1])):
        pairs = dict(group)
        most = max(
            max(margin_of(pair.chain, pair.gather), margin_of(pair.gather, pair.chain)) for pair in pairs.values()
        )
        how = f"{name} is faster, by up to {most:.1%}" if name else "they are too close to tell"
        said.append(f"{at_lengths(list(pairs))} {how}")
    one = next(iter(both.values())).chain
    return f"{one.workload.passes} on {one.target}, {one.method}: {'; '.join(said)}."


def faster_plan(pair: ChainAndGather) -> str | None:
    """The name of the faster scheme; None where they are too close to tell."""
    if pair.close:
        return None
    return CHAIN if margin_of(pair.chain, pair.gather) > 0 else GATHER


def sent_by_both(pair: ChainAndGather) -> str:
    """The bytes that each of them sends, the time they take, and the hidden share, at this length. Empty for a training
    step, which sends more than states."""
    chain, gather, _ = pair
    if chain.workload.passes == STEP:
        return ""
    transfers = simulate(chain.workload, chain.plan, COUNTING).transfers
    (((_, elements, itemsize), hops),) = transfers.items()
    each, hop = elements * itemsize, chain.cost_source and chain.cost_source.hop
    rate, overlap = chain.slowest_bytes_per_s, gather.overlap
    chained_s = hops * (each / rate + ((hop and hop.latency_s) or 0.0)) if rate else None
    gathered_s = None
    if overlap and overlap.ratio is not None:
        gathered_s = (overlap.hidden_s or 0.0) + (overlap.exposed_s or 0.0)
    gathered = simulate(gather.workload, gather.plan, COUNTING).sent.get("all-gather", 0)
    amount = "as many bytes" if gathered == hops * each else nbytes(gathered)
    return (
        f"{CHAIN} makes {hops} hops of {nbytes(each)}, independent of the length, one after the other"
        f"{communication_phrase(chain, chained_s)}; {GATHER} gathers {amount} at once"
        f"{communication_phrase(gather, gathered_s)}."
    )


def communication_phrase(m: Measurement, seconds: float | None) -> str:
    """The time of communication, and its hidden share, as far as they are known."""
    length = format_length(m.workload.seq_len)
    said = [f"{duration(seconds)}, {seconds / (m.median_s or 1):.1%} of the time at {length}" if seconds else ""]
    if m.overlap and m.overlap.ratio is not None:
        said.append(f"{m.overlap.ratio:.0%} hidden behind tiles")
    known = "; ".join(filter(None, said))
    return f" ({known})" if known else ""
