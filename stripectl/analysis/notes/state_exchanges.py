"""The fastest way to exchange a recurrence's state between devices at each length, and the reason: the bytes that each
scheme sends, in how many transfers that wait for each other. Maps and states have the same size at any length, and
all-to-alls send every token."""

from stripectl.analysis.fastest_of_schemes import ByLength, fastest_by_length, leaders_sentence
from stripectl.analysis.note import Note
from stripectl.core.lengths import format_length
from stripectl.core.workload import STEP
from stripectl.costs.cost_model import COUNTING
from stripectl.results.measurement import Measurement
from stripectl.results.run import Run
from stripectl.simulate.simulation import simulate
from stripectl.util.units import duration, nbytes, plural

CHAIN, GATHER, SCAN, TOKENS = "lasp", "lasp2", "linear_scan", "ulysses"


def state_exchanges(run: Run) -> list[str]:
    """One line for every workload with a recurrence (without its length) that two or more schemes computed on several
    devices, by the strongest method."""
    found = fastest_by_length(
        run.results,
        (CHAIN, GATHER, SCAN, TOKENS),
        lambda ranking: bool(ranking.workload.gated) and ranking.workload.passes != STEP,
    )
    return [f"{leaders_sentence(each, leaders_phrase)} {reason_sentence(each)}" for each in found]


def leaders_phrase(same: ByLength) -> str:
    leaders = sorted(next(iter(same.values())).leaders)
    return f"{' and '.join(leaders)} {'is the fastest' if len(leaders) == 1 else 'are too close to tell'}"


def reason_sentence(by_length: ByLength) -> str:
    """The bytes of each scheme, the fastest at the longest length first; of tokens also at the shortest length."""
    first, last = (by_length[length].by_scheme for length in (min(by_length), max(by_length)))
    states = [sent_phrase(m) for name, m in last.items() if name != TOKENS]
    said = f"At any length {', '.join(states)}." if states else ""
    if TOKENS not in last:
        return said
    ends = {m.workload.seq_len: m for m in (first.get(TOKENS, last[TOKENS]), last[TOKENS])}
    tokens = (f"{nbytes(sent_bytes(m))}{time_phrase(m)} at {format_length(length)}" for length, m in ends.items())
    return f"{said} {TOKENS} sends every token, {' and '.join(tokens)}.".strip()


def sent_phrase(m: Measurement) -> str:
    """The bytes that a scheme of states sends, and its transfers."""
    name, count = m.plan.scheme, sum(simulate(m.workload, m.plan, COUNTING).transfers.values())
    how = {CHAIN: f"in {plural(count, 'hop')}, one after the other", GATHER: f"in {plural(count, 'gather')}"}
    rounds = f"in {plural(count, 'round')}{', each over twice as many links as the one before' * on_a_torus(m)}"
    return f"{name} sends {nbytes(sent_bytes(m))} {how.get(name, rounds)}{time_phrase(m)}"


def on_a_torus(m: Measurement) -> bool:
    return m.target.machine is not None and m.target.machine.torus_dims > 0 and m.plan.shards > 2


def sent_bytes(m: Measurement) -> int:
    return sum(simulate(m.workload, m.plan, COUNTING).sent.values())


def time_phrase(m: Measurement) -> str:
    """The time that a plan waits for its transfers, where it is known: on links that are twice as fast it waits half as
    long."""
    saved = sum((m.bottleneck_shares or {}).get(part, 0.0) for part in ("communication", "latency"))
    return f" ({duration(2 * saved * m.median_s)})" if saved and m.median_s else ""


note = Note(label="states", find=state_exchanges, order=50)
