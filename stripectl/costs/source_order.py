"""The cost model of a plan on a machine, with tiles from the strongest source that knows them.

A source is a function of machine, workload and plan; it returns a machine without links, or None where it does not know
the plan's tiles. In this order, the first that knows them decides:

1. calls that others measured, for kernels of which nothing else is known (`distilled_attention`);
2. times of tiles on this machine (`timed_tiles`), together with times of hops;
3. the table that ships for the machine, where it has the tiles themselves (`table`);
4. small programs, compiled for the machine (`small_programs`), where its compiler is at hand;
5. the table's nearest entries;
6. for recurrences on GPUs, measured kernels that compute a chunk in stages (`measured_stages`);
7. the compiler's estimates for the plan's own program, where it was compiled;
8. the machine's datasheet.
"""

from collections.abc import Callable

from stripectl.core.plan import Plan
from stripectl.core.workload import Workload
from stripectl.costs.cost_model import CostModel
from stripectl.costs.links import with_links
from stripectl.costs.sources.datasheet import datasheet_costs
from stripectl.costs.sources.distilled_attention import distilled_attention
from stripectl.costs.sources.measured_stages import measured_stages
from stripectl.costs.sources.table import exact_entries, nearest_entries
from stripectl.hardware.placement import MeshPlacement
from stripectl.hardware.profile import Hardware

Source = Callable[[Hardware, Workload, Plan], CostModel | None]


def cost_model(
    hardware: Hardware,
    workload: Workload,
    plan: Plan,
    placement: MeshPlacement | None = None,
    *,
    timings: Source | None = None,
    small_programs: Source | None = None,
    own_program: Source | None = None,
) -> CostModel:
    """The cost model of a plan of equal layers that names its tiles; links are the datasheet's, by the placement of
    the plan's mesh, unless they were timed.

    Raises:
        BadInput: the profile lacks a figure that this needs, or no call of a kernel that is table only is known.
    """
    if machine := distilled_attention(hardware, workload, plan):
        return with_links(hardware, machine, placement)
    if timings and (machine := timings(hardware, workload, plan)):
        return machine
    sources = (exact_entries, small_programs, nearest_entries, measured_stages, own_program, datasheet_costs)
    known = (source(hardware, workload, plan) for source in sources if source)
    return with_links(hardware, next(filter(None, known)), placement)
