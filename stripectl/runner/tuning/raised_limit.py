"""The time that tiles would save which only a raised limit of a TPU core's memory allows."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from stripectl.analysis.ranking import rankings
from stripectl.core.kernel import kernels
from stripectl.costs.core_memory import VMEM_FLAG, flag_for, limit_bytes, most_needed_bytes
from stripectl.measure.local_target import LocalTarget
from stripectl.results.backend import Backend, Notice, finals
from stripectl.results.case import Case
from stripectl.results.measurement import Measurement
from stripectl.runner.cases import make_case
from stripectl.util.units import duration

MIN_SAVING = 0.01  # of the time, below which the limit is not worth a line


def gains_of_raised_limit(made: Sequence[Measurement], place: LocalTarget, simulated: Backend) -> Iterator[Notice]:
    """For the best plan of each workload, the best tiles under the highest limit that a core has, if they are
    simulated clearly faster than the best tiles under the present limit."""
    for best in (ranking.best for ranking in rankings(made)):
        flags = best.flags or {}
        value = limit_to_raise(best, place)
        if value is None:
            continue
        raised_flags = {**flags, VMEM_FLAG: value}
        cases = [with_default_tiles(best, each, place) for each in (flags, raised_flags)]
        usual, raised = finals(simulated.run(cases))
        if usual.median_s and raised.median_s and raised.median_s < usual.median_s * (1 - MIN_SAVING):
            yield Notice(
                f"limit   --xla-flag {VMEM_FLAG}={value} allows {raised.plan}: simulated {duration(raised.median_s)} "
                f"in place of {duration(usual.median_s)} with the best tiles under the present limit, "
                f"{1 - raised.median_s / usual.median_s:.0%} less"
            )


def with_default_tiles(m: Measurement, flags: Mapping[str, str], place: LocalTarget) -> Case:
    """Give a measurement's plan its default tiles under these flags."""
    bare = replace(m.plan, tile=None, backward=None)
    return make_case(m.workload, bare, flags, place, "simulated", describe=False)


def limit_to_raise(m: Measurement, place: LocalTarget) -> str | None:
    """The value of the flag that the best tiles under the highest limit need; None where the kernel asks for its memory
    itself, or the tiles need no higher limit."""
    hardware, kernel, flags = place.target.hardware, kernels[m.plan.kernel], m.flags or {}
    limit, has = limit_bytes(kernel, hardware, flags), hardware.figure("vmem_bytes")
    if kernel.costs.vmem_wanted or limit is None or not has or limit >= has:
        return None
    highest = with_default_tiles(m, {**flags, VMEM_FLAG: flag_for(math.floor(has))}, place)
    needed = most_needed_bytes(m.workload, highest.plan, hardware) if highest.is_ready else 0
    return flag_for(needed) if needed > limit else None
