"""The scores that a plan computes: known before it runs, and about proportional to its time."""

from collections.abc import Mapping

from stripectl.core.layer_groups import mean_of_layers
from stripectl.core.plan import Plan
from stripectl.core.workload import Workload
from stripectl.costs.cost_model import CostModel
from stripectl.results.case import Case
from stripectl.results.tile_cost import TileCost
from stripectl.simulate.simulation import simulate

MATMULS = {"forward": 2.0, "backward": 5.0}  # per tile


def work_of(case: Case, weights: Mapping[str, float] = MATMULS) -> float:
    """Scores that the slowest device computes, with dead scores in its tiles, weighted by the pass."""

    def cost(plan: Plan, passes: str) -> TileCost:
        weight = weights.get(passes, 0.0) * plan.tiles[passes].scores
        return TileCost(weight, weight)

    def work(workload: Workload, plan: Plan) -> float:
        return simulate(workload, plan, CostModel(cost(plan, "forward"), cost(plan, "backward"))).seconds

    return mean_of_layers(case.layers, [work(own, plan) for _, own, plan in case.layers])
