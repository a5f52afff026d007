"""The source of the tile and hop costs behind simulated times, in sentences with the error of the fit."""

from collections.abc import Iterable, Iterator

from stripectl.core.kernel import kernels
from stripectl.core.layer_groups import parts_of_plan
from stripectl.core.plan import LAYERS_APART, Plan
from stripectl.costs.power_limit import SHARE
from stripectl.results.cost_source import CostOrigin, CostSource
from stripectl.results.measurement import Measurement
from stripectl.util.units import duration, rate

TABLED = {
    CostOrigin.ESTIMATED_CYCLES: "the compiler's estimated cycles",
    CostOrigin.BUNDLES: "the compiler's bundles",
    CostOrigin.PUBLISHED: "published times",
    CostOrigin.MEASURED_BEFORE: "times measured with `make check-gpu`",
}

# Chunks of kernels `in_stages` take the time of `costs.sources.gated_chunks.stage_bytes` (benchmarks/README.md).
IN_STAGES = "a chunk takes the memory traffic of the stages of published kernels for GPUs"
AT_DATASHEET = (
    f"{IN_STAGES}, at the datasheet's rate. Kernels that were measured for other recurrences take 1.3 to 3.6 times as "
    "long, and loops of XLA take longer"
)


def cost_sentences(measurements: Iterable[Measurement]) -> list[str]:
    """One for each set of tile costs, once; costs of layers that a plan names apart are marked, and machines without
    tables are named."""
    said: dict[str, None] = {}
    for m in measurements:
        if m.cost_source is None:
            continue
        if m.cost_source.source == CostOrigin.DATASHEET and m.target.machine is None:
            said[without_tables(m.target.hardware)] = None
        made_by = m.compiled_program and m.compiled_program.compiler
        said |= dict.fromkeys(_sentences(m.cost_source, m.plan, m.tiles and m.tiles.tile, made_by))
        plans = dict(zip(parts_of_plan(m.workload).values(), (each.plan for each in m.layers), strict=True))
        for part, beside in m.cost_source.apart.items():
            own = plans[part]
            others = _sentences(beside, own, str(own.tile), made_by)
            said |= {f"{LAYERS_APART[part]}: {each}": None for each in others if each not in said}
    return list(said)


def without_tables(hardware: str) -> str:
    """Why tiles of a machine come from its datasheet, and what to do."""
    return (
        f"tiles of {hardware} come from its datasheet because no table has this name. Try based_on: NAME in its file, "
        "with the name of a similar machine (stripectl list hardware)."
    )


def _sentences(known: CostSource, plan: Plan, tile: str | None, compiler: str | None) -> Iterator[str]:
    """The source of the time of a plan with such tiles."""
    why = f"; {known.not_compiled}" if known.not_compiled else ""
    if known.source == CostOrigin.NONE:
        yield f"no time: {known.left_out}"
    elif known.source == CostOrigin.MEASURED_TILE:
        yield f"{plan.kernel} {_timed_tiles(known)}; {_hop(known)}"
    elif known.source == CostOrigin.DATASHEET:
        speed = rate(known.rates.flops_per_s, "FLOP/s")
        yield f"tiles from the datasheet, {known.rates.rate_is} {speed}; {_hop(known)}{why}"
        if kernels[plan.kernel].costs.in_stages:
            yield f"{plan.kernel}: {AT_DATASHEET}"
    elif known.source == CostOrigin.MEASURED_STAGES:
        yield f"{plan.kernel}: {_measured_stages(known)}; {_hop(known)}{why}"
    elif known.source == CostOrigin.FEW_LAYERS:
        few, many = known.few_layers.layers_run
        each = f"{duration(known.few_layers.layer_s)} per layer"
        yield f"steps of {known.few_layers.layers} layers from {few} and {many} that ran interleaved: {each}"
    elif known.source in TABLED and known.forward:
        yield f"{plan.kernel} {_tabled_tiles(known, tile, compiler)}; {_hop(known)}{why}"
        for each in known.disagrees:
            figures = f"{each.program_cycles:,.0f} cycles in its program, {each.table_cycles:,.0f} in the table"
            yield f"{plan}: a {each.tile} tile, {each.passes}: {figures}"
    if known.deterministic_backward:
        factor = f"{known.deterministic_backward:.2f} times as long"
        yield f"the deterministic backward pass of {plan.kernel} takes {factor} (NVIDIA, cuDNN 9.22 on Blackwell)"
    for axis, worst in (known.links.slower_hops or {}).items():
        yield f"the slowest hop over {axis}: {worst}"


def _hop(known: CostSource) -> str:
    hop = known.links.hop
    return f"hop {duration(hop and hop.latency_s)} + {rate(hop and hop.bytes_per_s_one_way, 'B/s')}"


def _timed_tiles(known: CostSource) -> str:
    errors = [f"{name} {own.held_out.error:+.0%}" for name, own in known.by_pass.items() if own.held_out]
    backward = f" (backward {known.timings.backward_tile})" if known.timings.backward_tile else ""
    fit = f"error on a block that was not in the fit: {', '.join(errors)}"
    return f"tiles of {known.timings.tile}{backward} timed here, {fit}"


def _measured_stages(known: CostSource) -> str:
    stages = known.stages
    assert stages.memory_share and stages.step_s is not None
    share = f"{IN_STAGES}, at {stages.memory_share:.0%} of the memory's rate, and a step of {duration(stages.step_s)}"
    measured = f"as {stages.measured_kernel} does forward on {stages.measured_on} (measured by NVIDIA)"
    return f"{share}, {measured}; backward at the same share; loops of XLA take longer"


def _tabled_tiles(known: CostSource, tile: str | None, compiler: str | None) -> str:
    assert known.forward
    of = (
        ""
        if known.source in (CostOrigin.PUBLISHED, CostOrigin.MEASURED_BEFORE)
        else f" ({known.entry.made_by or compiler})"
    )
    at = f" at {rate(known.rates.clock_hz, 'Hz')}" if known.rates.clock_hz else ""
    table = f" in {known.entry.table}" if known.entry.table else ""
    near = f", from the nearest entry ({known.entry.interpolated_from})" if known.entry.interpolated_from else ""
    whole, boundary = duration(known.forward.whole_s), duration(known.forward.boundary_s)
    costs = f"forward {whole} per whole tile, {boundary} per boundary tile"
    if any(name.startswith(SHARE) for name in known.sources or {}):
        costs += ", at the rate that the GPU sustains without pauses"
    return f"tiles of {tile} by {TABLED[known.source]}{of}{table}{at}{near}: {costs}"
