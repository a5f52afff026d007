"""All meshes of a target's devices for a plan, and the few plans on them that are worth compiling or measuring: all are
simulated, and the fastest of each scheme and mesh are chosen."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from stripectl.core.mesh import BATCH_AXES, HEAD_AXES, factorisations, make_mesh
from stripectl.core.plan import UNSHARDED, Plan, schemes
from stripectl.results.measurement import Measurement
from stripectl.results.measurement_set import refusals_and_failures

DEFAULT_REFINE_COUNT = 4
MAX_FULL_ROWS = 1000  # plans per workload that a run stores in full; of more, the notable plans
NOTABLE_PLANS = 20  # the fastest plans among them


def every_mesh(plan: Plan, devices: int) -> Iterator[Plan]:
    """The plan on every factorisation of the devices over the axes of its scheme, of batch and of heads, with most
    devices on the sequence's own axes first; without factorisations that turn it into another scheme."""
    scheme = schemes[plan.scheme]
    axes = list(dict.fromkeys((*scheme.axes, *HEAD_AXES, *reversed(BATCH_AXES))))
    sizes = sorted(factorisations(devices, len(axes)), reverse=True)
    meshes = (make_mesh(dict(zip(axes, each, strict=True))) for each in sizes)
    plans = (replace(plan, mesh=mesh) for mesh in meshes)
    return (each for each in plans if all(each.size(axis) > 1 for axis in scheme.degenerate_axes))


def promising_plans(simulated: Sequence[Measurement]) -> list[Measurement]:
    """The fastest plan of every mesh, the fastest mesh first. With several schemes, the fastest plan of each scheme
    comes before them, so that schemes are compared at their best. Plans without a time are omitted."""
    timed = sorted((m for m in simulated if m.median_s), key=lambda m: m.median_s or 0.0)
    plans = [(m, m.plan) for m in reversed(timed)]
    by_scheme, by_mesh = {plan.sequence_scheme: m for m, plan in plans}, {plan.mesh: m for m, plan in plans}
    first = [*by_scheme.values()] if len(by_scheme.keys() - {UNSHARDED}) > 1 else []
    taken = {m.plan.mesh for m in first}
    rest = (m for mesh, m in by_mesh.items() if mesh not in taken)
    return [*sorted(first, key=timed.index), *sorted(rest, key=timed.index)]


def notable_plans(measurements: Sequence[Measurement]) -> list[Measurement]:
    """A selection of a workload's many plans, in their order: the fastest, the fastest of each scheme and mesh, and one
    refused plan for each reason."""
    timed = sorted((m for m in measurements if m.median_s), key=lambda m: m.median_s or 0.0)
    chosen = (
        *timed[:NOTABLE_PLANS],
        *promising_plans(timed),
        *(each[0] for each in refusals_and_failures(measurements)),
    )
    kept = {m.key for m in chosen}
    return [m for m in measurements if m.key in kept]
