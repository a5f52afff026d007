"""Every mesh that the devices of a target make for a plan, and the few of them that are worth a compiler's or a
machine's time: all are simulated, and the fastest go on, each with its best layout."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from stripectl.measurement import Measurement
from stripectl.plan import BATCH_AXES, HEAD_AXES, Plan, factorisations, make_mesh, parse_plan, schemes

FEW = 4


def every(plan: Plan, devices: int) -> Iterator[Plan]:
    """The plan on every factorisation of the devices over the axes of its scheme, of batch and of heads, those with
    most devices on the sequence's own axes first."""
    axes = list(dict.fromkeys((*schemes[plan.scheme].axes, *HEAD_AXES, *reversed(BATCH_AXES))))
    sizes = sorted(factorisations(devices, len(axes)), reverse=True)
    return (replace(plan, mesh=make_mesh(dict(zip(axes, each, strict=True)))) for each in sizes)


def best_by_mesh(simulated: Sequence[Measurement]) -> list[Measurement]:
    """The fastest plan of every mesh, the fastest mesh first; those without a time are left out."""
    timed = sorted((m for m in simulated if m.median_s), key=lambda m: m.median_s or 0.0)
    best = {parse_plan(m.plan).mesh: m for m in reversed(timed)}
    return sorted(best.values(), key=timed.index)
