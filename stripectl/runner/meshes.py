"""Every mesh that the devices of a target make for a plan, and the few plans on them that are worth a compiler's or a
machine's time: all are simulated, and the fastest of each scheme and mesh go on."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from stripectl.core.plan import (
    BATCH_AXES,
    HEAD_AXES,
    UNSHARDED,
    Plan,
    factorisations,
    make_mesh,
    schemes,
)
from stripectl.results.measurement import Measurement, refusals_and_failures

DEFAULT_REFINE_COUNT = 4
MAX_FULL_ROWS = 1000  # plans of a workload that a run holds whole; of more it holds the notable ones
NOTABLE_PLANS = 20  # of those, the fastest


def every_mesh(plan: Plan, devices: int) -> Iterator[Plan]:
    """The plan on every factorisation of the devices over the axes of its scheme, of batch and of heads, those with
    most devices on the sequence's own axes first; not on those that make another scheme of it."""
    scheme = schemes[plan.scheme]
    axes = list(dict.fromkeys((*scheme.axes, *HEAD_AXES, *reversed(BATCH_AXES))))
    sizes = sorted(factorisations(devices, len(axes)), reverse=True)
    meshes = (make_mesh(dict(zip(axes, each, strict=True))) for each in sizes)
    plans = (replace(plan, mesh=mesh) for mesh in meshes)
    return (each for each in plans if all(each.size(axis) > 1 for axis in scheme.degenerate_axes))


def promising_plans(simulated: Sequence[Measurement]) -> list[Measurement]:
    """The fastest plan of every mesh, the fastest mesh first; where there are several schemes, before them the fastest
    plan of each, so that schemes are compared at their best. Those without a time are left out."""
    timed = sorted((m for m in simulated if m.median_s), key=lambda m: m.median_s or 0.0)
    plans = [(m, m.plan) for m in reversed(timed)]
    by_scheme, by_mesh = {plan.sequence_scheme: m for m, plan in plans}, {plan.mesh: m for m, plan in plans}
    first = [*by_scheme.values()] if len(by_scheme.keys() - {UNSHARDED}) > 1 else []
    taken = {m.plan.mesh for m in first}
    rest = (m for mesh, m in by_mesh.items() if mesh not in taken)
    return [*sorted(first, key=timed.index), *sorted(rest, key=timed.index)]


def notable_plans(measurements: Sequence[Measurement]) -> list[Measurement]:
    """Of many plans of a workload, in their order: the fastest, the fastest of each scheme and mesh, and for each
    reason a plan that was refused for it."""
    timed = sorted((m for m in measurements if m.median_s), key=lambda m: m.median_s or 0.0)
    chosen = (
        *timed[:NOTABLE_PLANS],
        *promising_plans(timed),
        *(each[0] for each in refusals_and_failures(measurements)),
    )
    kept = set(map(id, chosen))
    return [m for m in measurements if id(m) in kept]
