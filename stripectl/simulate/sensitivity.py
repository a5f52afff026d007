"""What limits a plan, and how its time grows with the sequence: the same plan on clocks of other machines, and at other
lengths.

A part of the machine limits a plan by what its time would lose were that part twice as fast: half where nothing else
counts, nothing where it hides. The parts need not add up to a half, since what hides behind one part is laid bare when
that is faster.
"""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace

from stripectl.core.plan import Plan
from stripectl.core.validation import why_unsupported
from stripectl.core.workload import MAX_SEQ_LEN, Workload
from stripectl.errors import BadInput
from stripectl.results.measurement import Measurement, TimeAtLength
from stripectl.simulate.cost_model import PARTS, CostModel
from stripectl.simulate.simulation import Simulation, simulate_times

OCTAVES = 4  # halvings and doublings of the length: 1/16 to 16 times
MIN_SCALING_TOKENS = 2**10
# Pairs of shards to simulate for other lengths; a plan on N shards has N^2 of them, at 2 to 8 us each. So a ring of 128
# has all lengths, one of 256 the half and the double, a larger one none, since each would take seconds.
MAX_SHARD_PAIRS = 2**17


def with_sensitivity(case: Measurement, plan: Plan, machine: CostModel, found: Simulation, kind: str) -> Measurement:
    """The case, whose simulation was `found`, with its limits and its scaling."""
    workload = case.workload

    def faster(part: str) -> float:
        return float(simulate_times(workload, [plan], [machine.with_part_sped_up(part)]).seconds[0])

    def longer(other: Workload) -> float:
        return float(
            simulate_times(other, [plan], [machine.scaled_to_length(other.seq_len / workload.seq_len)]).seconds[0]
        )

    return replace(
        case,
        bottleneck_shares=bottleneck_shares(found.seconds, faster),
        scaling=scaling(workload, plan, found.seconds, kind, longer),
    )


def with_estimated_sensitivity(group: Sequence[Measurement], estimates: Sequence[Measurement]) -> list[Measurement]:
    """The cases, which are to be measured, with what their simulations say of their limits and scaling."""
    known = {each.identity: each for each in estimates}
    return [
        replace(case, bottleneck_shares=found.bottleneck_shares, scaling=found.scaling)
        if (found := known.get(case.identity))
        else case
        for case in group
    ]


def bottleneck_shares(seconds: float, faster: Callable[[str], float]) -> dict[str, float]:
    """The share of its time that a plan loses were a part of the machine twice as fast, by part; `faster(part)` is what
    it takes then."""
    return {part: max(0.0, 1 - faster(part) / seconds) if seconds else 0.0 for part in PARTS}


def scaling(
    workload: Workload, plan: Plan, seconds: float, kind: str, longer: Callable[[Workload], float]
) -> tuple[TimeAtLength, ...]:
    """Seconds of a plan at its own length, and at halvings and doublings of it that its layout and tile allow;
    `longer(workload)` is what it takes there."""
    found = {workload.seq_len: seconds}
    for length in other_lengths(workload.seq_len, plan.sequence_devices):
        with contextlib.suppress(BadInput):  # a length below that of the queries, or of too many documents
            other = replace(workload, seq_len=length)
            if why_unsupported(plan, other, kind) is None:
                found[length] = longer(other)
    return tuple(TimeAtLength(length, found[length]) for length in sorted(found))


def other_lengths(seq_len: int, shards: int) -> list[int]:
    """Halvings and doublings of a length, as many of them as such a ring may cost."""
    octaves = min(OCTAVES, MAX_SHARD_PAIRS // shards**2 // 2)
    halves = [seq_len >> times for times in range(1, octaves + 1) if seq_len % 2**times == 0]
    doubles = [seq_len << times for times in range(1, octaves + 1)]
    return [length for length in (*halves, *doubles) if MIN_SCALING_TOKENS <= length <= MAX_SEQ_LEN]
