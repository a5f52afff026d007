"""What limits a plan, and how its time grows with the sequence: the same plan on clocks of other machines, and at other
lengths.

A part of the machine limits a plan by what its time would lose were that part twice as fast: half where nothing else
counts, nothing where it hides. The parts need not add up to a half, since what hides behind one part is laid bare when
that is faster.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from stripectl.layout import TileCount
from stripectl.machine import PARTS, Machine
from stripectl.measurement import Measurement
from stripectl.plan import Plan, unsupported
from stripectl.simulate import Simulation, simulate
from stripectl.workload import LONGEST, Workload

OCTAVES = 4  # halvings and doublings of the length: 1/16 to 16 times
SHORTEST = 2**10
# Pairs of shards to simulate for other lengths; a plan on N shards has N^2 of them, at 2 to 8 us each. So a ring of 128
# has all lengths, one of 256 the half and the double, a larger one none, since each would take seconds.
MOST_PAIRS = 2**17


def explained(case: Measurement, plan: Plan, machine: Machine, found: Simulation, kind: str) -> Measurement:
    """The case, whose simulation was `found`, with its limits and its scaling."""
    counted = [each.tiles for each in found.rounds]
    return replace(
        case,
        limits=limits(case.workload, plan, machine, found.seconds, counted),
        scaling=scaling(case.workload, plan, machine, found.seconds, kind),
    )


def with_reasons(group: Sequence[Measurement], estimates: Sequence[Measurement]) -> list[Measurement]:
    """The cases, which are to be measured, with what their simulations say of their limits and scaling."""
    known = {each.what: each for each in estimates}
    return [
        replace(case, limits=found.limits, scaling=found.scaling) if (found := known.get(case.what)) else case
        for case in group
    ]


def limits(
    workload: Workload, plan: Plan, machine: Machine, seconds: float, counted: Sequence[TileCount] = ()
) -> dict[str, float]:
    """The share of its time that the plan loses were a part of the machine twice as fast, by part."""
    faster = {part: simulate(workload, plan, machine.faster(part), counted).seconds for part in PARTS}
    return {part: max(0.0, 1 - each / seconds) if seconds else 0.0 for part, each in faster.items()}


def scaling(workload: Workload, plan: Plan, machine: Machine, seconds: float, kind: str) -> list[dict[str, Any]]:
    """Seconds of the plan at its own length, and at halvings and doublings of it that its layout and tile allow."""
    found = {workload.seq_len: seconds}
    for length in other_lengths(workload.seq_len, plan.shards):
        longer = replace(workload, seq_len=length)
        if unsupported(plan, longer, kind) is None:
            found[length] = simulate(longer, plan, machine.longer(length / workload.seq_len)).seconds
    return [{"seq_len": length, "median_s": found[length]} for length in sorted(found)]


def other_lengths(seq_len: int, shards: int) -> list[int]:
    """Halvings and doublings of a length, as many of them as such a ring may cost."""
    octaves = min(OCTAVES, MOST_PAIRS // shards**2 // 2)
    halves = [seq_len >> times for times in range(1, octaves + 1) if seq_len % 2**times == 0]
    doubles = [seq_len << times for times in range(1, octaves + 1)]
    return [length for length in (*halves, *doubles) if SHORTEST <= length <= LONGEST]
