"""Which of two ways to bring states of linear attention round wins where, and why: N-1 hops that wait for each other,
beside which a device computes (LASP), or one collective, which may go both ways round (LASP-2)."""

import contextlib
from collections.abc import Iterable, Mapping
from typing import Any

from stripectl.measurement import Measurement
from stripectl.plan import STATES, parse_plan
from stripectl.units import duration, nbytes
from stripectl.workload import STEP, format_length

CHAIN, GATHER = "lasp", "lasp2"
ALIKE = 0.005  # of the time: a difference that no method here can tell


def chains(measurements: Iterable[Measurement]) -> list[str]:
    """A line for every linear attention that both schemes computed on a mesh of several devices, by method and pass."""
    groups: dict[Any, dict[int, dict[str, Measurement]]] = {}
    for m in (m for m in measurements if m.median_s):
        plan, work = parse_plan(m.plan), m.workload
        if plan.scheme in (CHAIN, GATHER) and plan.shards > 1 and work.passes != STEP:
            key = work.but_for("seq_len"), m.target, m.method, plan.mesh, plan.states
            groups.setdefault(key, {}).setdefault(work.seq_len, {}).setdefault(plan.scheme, m)
    found = []
    for lengths in groups.values():
        both = {length: pair for length, pair in sorted(lengths.items()) if len(pair) == 2}
        if both:
            with contextlib.suppress(KeyError, TypeError, ValueError, AttributeError):  # a run may be anybody's
                found.append(f"{won(both)} {sent(both[max(both)])}")
    return found


def won(both: Mapping[int, Mapping[str, Measurement]]) -> str:
    """Which of the two is faster at which lengths, and by how much at the most."""
    said = []
    for name, other in ((CHAIN, GATHER), (GATHER, CHAIN)):
        gains = {length: (pair[other].median_s or 0) / (pair[name].median_s or 1) - 1 for length, pair in both.items()}
        if faster := {length: gain for length, gain in gains.items() if gain > ALIKE}:
            said.append(f"{name} is faster at {ranges(list(both), faster)} tokens, by up to {max(faster.values()):.1%}")
    one = next(iter(next(iter(both.values())).values()))
    where = f"{one.workload.passes} on {one.target}, {one.method}"
    return f"{where}: {'; '.join(said) or f'{CHAIN} and {GATHER} take the same time'}."


def ranges(lengths: list[int], chosen: Iterable[int]) -> str:
    """Chosen ones of lengths, which ascend: `2k to 64k, 1M`."""
    runs: list[list[int]] = []
    for index in (lengths.index(each) for each in chosen):
        if runs and runs[-1][-1] == index - 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    ends = ([format_length(lengths[run[0]]), format_length(lengths[run[-1]])] for run in runs)
    return ", ".join(" to ".join(dict.fromkeys(each)) for each in ends)


def sent(pair: Mapping[str, Measurement]) -> str:
    """What each of them sends, how long that takes, and how much of it hides; the shares are of this length."""
    chain, gather = pair[CHAIN], pair[GATHER]
    plan = parse_plan(chain.plan)
    travels = 1 if chain.workload.passes == "forward" else 2 if plan.states == STATES[0] else 3
    hops = travels * (plan.shards - 1)
    each = sum((chain.bytes or {}).values()) / hops
    hop = (chain.calibration or {}).get("hop") or {}
    rate, overlap = hop.get("bytes_per_s_one_way"), gather.overlap or {}
    chained_s = hops * (each / rate + (hop.get("latency_s") or 0.0)) if rate else None
    gathered_s = overlap["hidden_s"] + overlap["exposed_s"] if overlap.get("ratio") is not None else None
    return (
        f"{CHAIN} makes {hops} hops of {nbytes(each)}, whatever the length, each after the one before it"
        f"{taken(chain, chained_s)}; {GATHER} gathers as much at once{taken(gather, gathered_s)}."
    )


def taken(m: Measurement, seconds: float | None) -> str:
    """How long communication takes, and how much of it hides, as far as anything says so."""
    length = format_length(m.workload.seq_len)
    said = [f"{duration(seconds)}, {seconds / (m.median_s or 1):.1%} of the time at {length}" if seconds else ""]
    if (m.overlap or {}).get("ratio") is not None:
        said.append(f"{m.overlap['ratio']:.0%} of it hidden behind tiles" if m.overlap else "")
    known = "; ".join(filter(None, said))
    return f" ({known})" if known else ""
