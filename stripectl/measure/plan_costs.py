"""The costs of a plan's tiles and hops on a target, from the strongest source that is available."""

from dataclasses import replace

from stripectl.core.kernel import kernels
from stripectl.core.layer_groups import LayerGroup
from stripectl.costs.cost_model import CostModel
from stripectl.costs.cost_tables import shipped_costs, table_cost_model
from stripectl.costs.datasheet import datasheet_cost_model
from stripectl.errors import BadInput
from stripectl.hardware.placement import place_mesh
from stripectl.measure.local_target import LocalTarget
from stripectl.measure.machine_timings import MachineTimings
from stripectl.simulate.calibration import BlockShape, measured_cost_model


def plan_costs(group: LayerGroup, place: LocalTarget, timings: MachineTimings) -> CostModel:
    """The cost model for the plan of equal layers: timed here where the target's devices are local, else from the table
    that ships for it, else from its datasheet.

    Raises:
        BadInput: the datasheet lacks a figure, or the kernel has no tile that could be timed.
    """
    _, workload, plan = group
    hardware, tile = place.target.hardware, plan.tile
    assert tile
    if not place.is_timed:
        wired = place_mesh(place.target, plan.mesh or ())
        if known := shipped_costs(hardware, workload, plan):
            return table_cost_model(hardware, workload, plan, known, wired)
        return datasheet_cost_model(hardware, workload, tile, wired, plan.backward, kernels[plan.kernel])
    if kernels[plan.kernel].keeps_all_scores:
        raise BadInput(
            f"{plan.kernel} has no tile that could be timed for a simulation. Try --method measured, or a --target "
            "with a datasheet."
        )
    both = plan.tiles if workload.passes != "forward" else {"forward": tile}
    shape = BlockShape.of(workload, plan.kernel, hardware.kind)
    times = {passes: timings.tile_times(place, plan.kernel, own, workload, passes) for passes, own in both.items()}
    machine = measured_cost_model(times, both, shape.heads, plan.kernel, timings.hop_of(place), hardware.overlaps)
    return replace(machine, torus=bool(hardware.torus_dims))
