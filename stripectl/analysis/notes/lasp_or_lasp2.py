"""LASP or LASP-2: which way to exchange states of linear attention is faster at which length, and why. LASP has N-1
hops that wait for each other, while the device computes; LASP-2 has one collective, which may use both directions."""

from collections.abc import Hashable
from dataclasses import replace

from stripectl.analysis.fastest_of_schemes import ByLength, FastestOfSchemes, fastest_by_length, leaders_sentence
from stripectl.analysis.note import Note
from stripectl.analysis.ranking import margin_of
from stripectl.core.lengths import format_length
from stripectl.core.workload import STEP
from stripectl.costs.cost_model import COUNTING
from stripectl.results.case import flags_text
from stripectl.results.measurement import Measurement
from stripectl.results.run import Run
from stripectl.simulate.simulation import simulate
from stripectl.util.units import duration, nbytes

CHAIN, GATHER = "lasp", "lasp2"


def chain_and_gather(run: Run) -> list[str]:
    """One line for every workload (without its length) with a constant decay that both schemes computed on a mesh of
    several devices, by the strongest method."""
    found = fastest_by_length(
        run.results, (CHAIN, GATHER), lambda ranking: not ranking.workload.gated, mesh_and_options
    )
    return [f"{leaders_sentence(each, faster_phrase)} {sent_by_both(each[max(each)])}".strip() for each in found]


def mesh_and_options(m: Measurement) -> Hashable:
    """The mesh and the options that both plans of a pair must have."""
    return replace(m.plan, scheme=CHAIN, tile=None, backward=None), flags_text(m.flags)


def faster_phrase(same: ByLength) -> str:
    """The faster scheme at these lengths, and the largest difference."""
    first = next(iter(same.values()))
    if len(first.leaders) > 1:
        return "they are too close to tell"
    most = max(margin_of(*each.by_scheme.values()) for each in same.values())
    return f"{next(iter(first.by_scheme))} is faster, by up to {most:.1%}"


def sent_by_both(pair: FastestOfSchemes) -> str:
    """The bytes that each of them sends, the time they take, and the hidden share, at this length. Empty for a training
    step, which sends more than states."""
    chain, gather = pair.by_scheme[CHAIN], pair.by_scheme[GATHER]
    if chain.workload.passes == STEP:
        return ""
    transfers = simulate(chain.workload, chain.plan, COUNTING).transfers
    hops = sum(transfers.values())
    chained = sum(elements * itemsize * count for (_, elements, itemsize), count in transfers.items())
    rate, overlap, hop = chain.slowest_bytes_per_s, gather.overlap, chain.cost_source and chain.cost_source.links.hop
    chained_s = chained / rate + hops * ((hop and hop.latency_s) or 0.0) if rate else None
    gathered_s = None
    if overlap and overlap.ratio is not None:
        gathered_s = (overlap.hidden_s or 0.0) + (overlap.exposed_s or 0.0)
    gathered = simulate(gather.workload, gather.plan, COUNTING).sent.get("all-gather", 0)
    amount = "as many bytes" if gathered == chained else nbytes(gathered)
    return (
        f"{CHAIN} makes {hops} hops of {nbytes(chained // hops)}, independent of the length, one after the other"
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


note = Note(label="states", find=chain_and_gather, order=40)
