"""The time that tiles would save which only a raised limit of a TPU core's memory allows."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from stripectl.analysis.ranking import rankings
from stripectl.core.kernel import kernels
from stripectl.costs.core_memory import VMEM_FLAG, flag_for, limit_bytes, most_needed_bytes
from stripectl.costs.default_tiles import with_tile
from stripectl.hardware.profile import Hardware
from stripectl.measure.device_pool import LocalTarget
from stripectl.results.backend import Backend, Notice, finals
from stripectl.results.case import Case
from stripectl.results.measurement import Measurement
from stripectl.util.units import duration

MIN_SAVING = 0.01  # of the time, below which the limit is not worth a line


def gains_of_raised_limit(made: Sequence[Measurement], place: LocalTarget, simulated: Backend) -> Iterator[Notice]:
    """For the best plan of each workload, the best tiles under the highest limit that a core has, if they are
    simulated clearly faster than the best tiles under its own limit."""
    for ranking in rankings(made):
        case = case_of(ranking.best, place)
        under_own, raised = with_best_tiles(case, place.target.hardware), with_raised_limit(case, place.target.hardware)
        if raised is None:
            continue
        usual, faster = finals(simulated.run([under_own, raised]))
        if usual.median_s and faster.median_s and faster.median_s < usual.median_s * (1 - MIN_SAVING):
            saving = 1 - faster.median_s / usual.median_s
            yield Notice(
                f"limit   --xla-flag {VMEM_FLAG}={(raised.flags or {})[VMEM_FLAG]} allows {faster.plan}: simulated "
                f"{duration(faster.median_s)} in place of {duration(usual.median_s)} with the best tiles under the "
                f"present limit, {saving:.0%} less"
            )


def case_of(m: Measurement, place: LocalTarget) -> Case:
    return Case(workload=m.workload, plan=m.plan, target=place.target.name, method="simulated", flags=m.flags)


def with_best_tiles(case: Case, hardware: Hardware) -> Case:
    bare = replace(case.plan, tile=None, backward=None)
    return replace(case, plan=with_tile(bare, case.workload, hardware, case.flags or {}))


def with_raised_limit(case: Case, hardware: Hardware) -> Case | None:
    """The case with its best tiles under the highest limit, and the limit that they need; None where the kernel asks
    for its memory itself, or the tiles need no higher limit."""
    kernel, has = kernels[case.plan.kernel], hardware.figure("vmem_bytes")
    limit = limit_bytes(kernel, hardware, case.flags or {})
    if kernel.vmem_wanted or limit is None or not has or limit >= has:
        return None
    highest = replace(case, flags={**(case.flags or {}), VMEM_FLAG: flag_for(math.floor(has))})
    found = with_best_tiles(highest, hardware)
    needed = most_needed_bytes(found.workload, found.plan, hardware)
    return replace(found, flags={**(case.flags or {}), VMEM_FLAG: flag_for(needed)}) if needed > limit else None
