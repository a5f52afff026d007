"""The limits of a plan, and the growth of its time with the sequence: the plan is simulated again on other machines and
at other lengths.

A part of the machine limits a plan by the share of its time that would disappear if the part were twice as fast: half
if nothing else matters, nothing if the part is hidden. The shares need not add up to a half, because a faster part can
expose other work that was hidden behind it.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from stripectl.core.layer_groups import layer_groups, mean_of_layers
from stripectl.core.lengths import MAX_SEQ_LEN
from stripectl.core.plan import Plan
from stripectl.core.validation import why_unsupported
from stripectl.core.workload import Workload
from stripectl.costs.cost_model import PARTS, CostModel
from stripectl.errors import BadInput
from stripectl.results.backend import Event, Final, Partial
from stripectl.results.measurement import Measurement, TimeAtLength
from stripectl.simulate.simulation import simulate_times

OCTAVES = 4  # halvings and doublings of the length: 1/16 to 16 times
MIN_SCALING_TOKENS = 2**10
# Pairs of shards to simulate for other lengths; a plan on N shards has N^2 pairs, at 2 to 8 us each. A ring of 128 gets
# all lengths, a ring of 256 the half and the double, and a larger ring none, because each length would take seconds.
MAX_SHARD_PAIRS = 2**17


def with_sensitivity(m: Measurement, machines: Sequence[CostModel], kind: str) -> Measurement:
    """The measurement of attention, which was simulated on a machine for each kind of its layers, with its limits and
    its scaling."""
    workload, plan, seconds = m.workload, m.plan, m.median_s or 0.0

    def mean_s(workload: Workload, machines: Iterable[CostModel]) -> float:
        groups = layer_groups(workload, plan)
        times = (
            simulate_times(own, [each], [machine]) for (_, own, each), machine in zip(groups, machines, strict=True)
        )
        return mean_of_layers(groups, [float(each.seconds[0]) for each in times])

    def faster(part: str) -> float:
        return mean_s(workload, [each.with_part_sped_up(part) for each in machines])

    def longer(other: Workload) -> float:
        return mean_s(other, [each.scaled_to_length(other.seq_len / workload.seq_len) for each in machines])

    return replace(
        m,
        bottleneck_shares=bottleneck_shares(seconds, faster),
        scaling=scaling(workload, plan, seconds, kind, longer),
    )


def with_estimated_sensitivity(events: Iterable[Event], estimates: Iterable[Measurement]) -> Iterator[Event]:
    """The events of plans that are measured, with limits and scaling from their simulations."""
    known = {each.identity: each for each in estimates}
    for event in events:
        if isinstance(event, Partial | Final) and (found := known.get(event.measurement.identity)):
            shares, scaling = found.bottleneck_shares, found.scaling
            yield replace(event, measurement=replace(event.measurement, bottleneck_shares=shares, scaling=scaling))
        else:
            yield event


def bottleneck_shares(seconds: float, faster: Callable[[str], float]) -> dict[str, float]:
    """The share of its time that a plan would save if a part of the machine were twice as fast, by part; `faster(part)`
    is the time in this case."""
    return {part: max(0.0, 1 - faster(part) / seconds) if seconds else 0.0 for part in PARTS}


def scaling(
    workload: Workload, plan: Plan, seconds: float, kind: str, longer: Callable[[Workload], float]
) -> tuple[TimeAtLength, ...]:
    """Seconds of a plan at its own length, and at halvings and doublings that its layout and tile allow;
    `longer(workload)` is the time there."""
    found = {workload.seq_len: seconds}
    for length in other_lengths(workload.seq_len, plan.sequence_devices):
        with contextlib.suppress(BadInput):  # a length below the number of queries, or with too many documents
            other = replace(workload, seq_len=length)
            if why_unsupported(plan, other, kind) is None:
                found[length] = longer(other)
    return tuple(TimeAtLength(length, found[length]) for length in sorted(found))


def other_lengths(seq_len: int, shards: int) -> list[int]:
    """Halvings and doublings of a length, as many as a ring of this size may cost."""
    octaves = min(OCTAVES, MAX_SHARD_PAIRS // shards**2 // 2)
    halves = [seq_len >> times for times in range(1, octaves + 1) if seq_len % 2**times == 0]
    doubles = [seq_len << times for times in range(1, octaves + 1)]
    return [length for length in (*halves, *doubles) if MIN_SCALING_TOKENS <= length <= MAX_SEQ_LEN]
