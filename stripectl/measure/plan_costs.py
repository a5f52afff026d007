"""The costs of a plan's tiles and hops on a target: timed here where the target's devices are local."""

from functools import partial

from stripectl.core.kernel import kernels
from stripectl.core.layer_groups import LayerGroup
from stripectl.core.plan import Plan
from stripectl.core.workload import Workload
from stripectl.costs.cost_model import CostModel
from stripectl.costs.source_order import cost_model
from stripectl.costs.sources.timed_tiles import BlockShape, timed_cost_model
from stripectl.errors import BadInput
from stripectl.hardware.placement import place_mesh
from stripectl.hardware.profile import Hardware
from stripectl.measure.local_target import LocalTarget
from stripectl.measure.machine_timings import MachineTimings


def plan_costs(group: LayerGroup, place: LocalTarget, timings: MachineTimings) -> CostModel:
    """The cost model for the plan of equal layers, from the strongest source that is available.

    Raises:
        BadInput: the datasheet lacks a figure, or the kernel has no tile that could be timed.
    """
    _, workload, plan = group
    hardware = place.target.hardware
    if place.is_timed:
        return cost_model(hardware, workload, plan, timings=partial(local_cost_model, place, timings))
    return cost_model(hardware, workload, plan, place_mesh(place.target, plan.mesh or ()))


def local_cost_model(
    place: LocalTarget, timings: MachineTimings, hardware: Hardware, workload: Workload, plan: Plan
) -> CostModel:
    """The machine as it is timed here, on blocks of the plan's tiles.

    Raises:
        BadInput: the kernel has no tile that could be timed.
    """
    if kernels[plan.kernel].keeps_all_scores:
        raise BadInput(
            f"{plan.kernel} has no tile that could be timed for a simulation. Try --method measured, or a --target "
            "with a datasheet."
        )
    tiles = {passes: plan.tiles[passes] for passes in workload.kernel_passes}
    shape = BlockShape.of(workload, plan.kernel, hardware.kind)
    times = {passes: timings.tile_times(place, plan.kernel, own, workload, passes) for passes, own in tiles.items()}
    return timed_cost_model(times, tiles, shape.heads, plan.kernel, timings.hop_of(place), hardware)
