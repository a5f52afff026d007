"""The scores that a plan computes: known before it runs, and about proportional to its time."""

from collections.abc import Mapping

from stripectl.costs.cost_model import CostModel
from stripectl.results.case import Case
from stripectl.results.tile_cost import TileCost
from stripectl.simulate.simulation import simulate

MATMULS = {"forward": 2.0, "backward": 5.0}  # per tile


def work_of(case: Case, weights: Mapping[str, float] = MATMULS) -> float:
    """Scores that the slowest device computes, with dead scores in its tiles, weighted by the pass."""
    plan = case.plan

    def cost(passes: str) -> TileCost:
        tile = plan.tiles[passes]
        weight = weights.get(passes, 0.0) * tile.scores
        return TileCost(weight, weight)

    machine = CostModel(cost("forward"), cost("backward"))
    return simulate(case.workload, plan, machine).seconds
