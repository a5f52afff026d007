"""The fastest way to exchange a recurrence's state between devices at each length, and the reason: the bytes that each
scheme sends, in how many transfers that wait for each other. Maps and states have the same size at any length, and
all-to-alls send every token."""

import contextlib
import itertools
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from stripectl.analysis.ranking import Ranking, rankings
from stripectl.core.workload import STEP, at_lengths, format_length
from stripectl.costs.cost_model import COUNTING
from stripectl.results.measurement import Measurement
from stripectl.simulate.simulation import simulate
from stripectl.util.units import duration, nbytes, plural

CHAIN, GATHER, SCAN, TOKENS = "lasp", "lasp2", "linear_scan", "ulysses"


class Exchanges(NamedTuple):
    """The fastest plan of each scheme at a length, the fastest first, and the schemes that may be the fastest."""

    by_scheme: Mapping[str, Measurement]
    leaders: tuple[str, ...]


def state_exchanges(measurements: Iterable[Measurement]) -> list[str]:
    """One line for every workload with a recurrence (without its length) that two or more schemes computed on several
    devices, by the strongest method."""
    groups: dict[Any, dict[int, Exchanges]] = {}
    for ranking in rankings(list(measurements)):
        work = ranking.workload
        if work.gated and work.passes != STEP and len((found := exchanges(ranking)).by_scheme) > 1:
            key = work.without("seq_len"), ranking.best.target, ranking.best.method
            groups.setdefault(key, {})[work.seq_len] = found
    lines = list[str]()
    for lengths in groups.values():
        by_length = dict(sorted(lengths.items()))
        with contextlib.suppress(KeyError, TypeError, ValueError, AttributeError):  # a run may come from anybody
            lines.append(f"{fastest_sentence(by_length)} {reason_sentence(by_length)}")
    return lines


def exchanges(ranking: Ranking) -> Exchanges:
    found: dict[str, Measurement] = {}
    for m in ranking.rivals:
        if m.plan.scheme in (CHAIN, GATHER, SCAN, TOKENS) and m.plan.sequence_devices > 1:
            found.setdefault(m.plan.scheme, m)
    first = next(iter(found.values()), None)
    close = (name for name, m in found.items() if first and (m is first or ranking.too_close(first, m)))
    return Exchanges(found, tuple(close))


def fastest_sentence(by_length: Mapping[int, Exchanges]) -> str:
    """Which scheme is the fastest at which lengths."""
    said = list[str]()
    for leaders, group in itertools.groupby(by_length.items(), key=lambda each: sorted(each[1].leaders)):
        how = "is the fastest" if len(leaders) == 1 else "are too close to tell"
        said.append(f"{at_lengths([length for length, _ in group])} {' and '.join(leaders)} {how}")
    one = next(iter(next(iter(by_length.values())).by_scheme.values()))
    return f"{one.workload.passes} on {one.target}, {one.method}: {'; '.join(said)}."


def reason_sentence(by_length: Mapping[int, Exchanges]) -> str:
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
