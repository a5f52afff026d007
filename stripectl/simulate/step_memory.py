"""The peak memory of a device without a compiler: of attention alone, or of a simulated step."""

from dataclasses import replace

from stripectl.core.kernel import LANES, kernels
from stripectl.core.layer_groups import layer_groups
from stripectl.core.plan import Plan
from stripectl.core.workload import STEP, Workload
from stripectl.costs.cost_model import COUNTING
from stripectl.simulate.layer_attention import layer_attention
from stripectl.simulate.simulation import simulate, simulate_times
from stripectl.simulate.step_program import run_step


def predicted_peak_bytes(workload: Workload, plan: Plan, kind: str) -> int:
    """The predicted peak memory of a device of this kind, for attention alone or for a step."""
    if workload.passes == STEP:
        return sum(step_memory(workload, plan, kind).values())
    return max(simulate(own, each, COUNTING).peak_bytes for _, own, each in layer_groups(workload, plan))


def step_memory(workload: Workload, plan: Plan, kind: str) -> dict[str, int]:
    """Bytes of a device of this kind at the peak of a step, by part; their sum is the peak."""
    attention = [
        layer_attention(
            group, simulate_times(layer_in_memory(group.workload, group.plan), [group.plan], [COUNTING], layer=True)
        )
        for group in layer_groups(workload, plan)
    ]
    return run_step(workload, plan, attention=attention, kind=kind).ledger.peak()


def layer_in_memory(workload: Workload, plan: Plan) -> Workload:
    """The attention of one layer of a step, forward and backward, with heads as large as in memory: where a Pallas
    kernel computes a recurrence, a row of its arrays fills whole vector registers."""
    layer = workload.one_layer("forward-backward")
    if not (layer.gated and kernels[plan.kernel].costs.bundles):
        return layer
    keys, values = (-(-size // LANES) * LANES for size in (layer.head_dim, layer.value_dim))
    return replace(layer, head_dim=keys, v_head_dim=values)
