"""Machines whose tiles have the costs of their datasheet."""

from stripectl.core.layout import Tile
from stripectl.core.plan import Plan
from stripectl.core.workload import Workload
from stripectl.costs.cost_model import CostModel
from stripectl.costs.links import with_links
from stripectl.costs.sources.datasheet import datasheet_costs
from stripectl.hardware.placement import MeshPlacement
from stripectl.hardware.profile import Hardware


def datasheet_machine(
    hardware: Hardware, workload: Workload, tile: Tile, placement: MeshPlacement | None = None, kernel: str = "xla"
) -> CostModel:
    """The machine for plans of a kernel with this tile."""
    plan = Plan("ring", "contiguous", kernel, tile=tile)
    return with_links(hardware, datasheet_costs(hardware, workload, plan), placement)
