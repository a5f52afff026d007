"""Notes below the tables of a terminal: sources of times, longest sequences, and published values."""

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from stripectl.analysis.explanation import gathers_sentence
from stripectl.analysis.lasp_or_lasp2 import chain_and_gather
from stripectl.analysis.pass_kv_or_q import PASS_KV, PASS_Q, PassRule
from stripectl.analysis.plausibility import why_implausible, why_so_fast
from stripectl.analysis.state_exchanges import state_exchanges
from stripectl.analysis.striped_attention_paper import published_comparisons
from stripectl.core.bounds import formula_lengths
from stripectl.core.plan import Plan
from stripectl.core.workload import format_length
from stripectl.reporters.terminal.tables import fitted_table
from stripectl.results.cost_source import CostOrigin, CostSource
from stripectl.results.labels import plan_label
from stripectl.results.measurement import Measurement
from stripectl.results.measurement_set import indexed
from stripectl.results.run import Run
from stripectl.results.search_table import SearchTable
from stripectl.runner.search import enough_devices
from stripectl.util.units import NOTHING, duration, nbytes, rate, times

TABLED = {
    CostOrigin.ESTIMATED_CYCLES: "the compiler's estimated cycles",
    CostOrigin.BUNDLES: "the compiler's bundles",
    CostOrigin.PUBLISHED: "published times",
}
MAX_NOTES = 3  # lines of a kind below a table
MAX_REASONS = 6  # of refused plans in a search
PUBLISHED_TITLE = "training steps: striped over contiguous, compared with Brandon et al. 2023"
PUBLISHED_COLUMNS = "TMS: the paper's bound; bound: of a layer, in whole tiles"
PUBLISHED_WORDS = ("hardware", "model", "mesh", "method")


def cost_source_notes(run: Run) -> list[Text]:
    """One line for each set of tile costs behind simulated times: the error of the fit, and the cost of a hop."""
    lines: dict[str, None] = {}
    for m in run.measurements:
        if m.cost_source is None:
            continue
        made_by = m.compiled_program and m.compiled_program.compiler
        lines |= dict.fromkeys(_cost_lines(m.cost_source, m.plan, m.tiles and m.tiles.tile, made_by))
        if beside := m.cost_source.softmax:
            tile = m.plan.for_attention("softmax").tile
            others = _cost_lines(beside, m.plan, str(tile), made_by)
            lines |= {f"softmax layers: {line}": None for line in others if line not in lines}
    return [Text(f"costs   {line}") for line in lines]


def _cost_lines(known: CostSource, plan: Plan, tile: str | None, compiler: str | None) -> Iterator[str]:
    """The source of the time of a plan with such tiles."""
    if known.source == CostOrigin.NONE:
        yield f"no time: {known.left_out}"
    hop = known.hop
    link = f"hop {duration(hop and hop.latency_s)} + {rate(hop and hop.bytes_per_s_one_way, 'B/s')}"
    why = f"; {known.not_compiled}" if known.not_compiled else ""
    if known.source == CostOrigin.MEASURED_TILE:
        by_pass = known.by_pass.items()
        errors = ", ".join(f"{name} {own.held_out.error:+.0%}" for name, own in by_pass if own.held_out)
        own = f" (backward {known.backward_tile})" if known.backward_tile else ""
        yield f"tiles of {known.tile}{own} timed here, error on a block that was not in the fit: {errors}; {link}"
    elif known.source == CostOrigin.DATASHEET:
        yield f"tiles from the datasheet, {known.rate_is} {rate(known.flops_per_s, 'FLOP/s')}; {link}{why}"
    elif known.source == CostOrigin.FEW_LAYERS:
        few, many = known.layers_run
        each = f"{duration(known.layer_s)} per layer"
        yield f"steps of {known.layers} layers from {few} and {many} that ran interleaved: {each}"
    elif known.source in TABLED and known.forward:
        of = "" if known.source == CostOrigin.PUBLISHED else f" ({known.made_by or compiler})"
        at = f" at {rate(known.clock_hz, 'Hz')}" if known.clock_hz else ""
        table = f" in {known.table}" if known.table else ""
        near = f", from the nearest entry ({known.interpolated_from})" if known.interpolated_from else ""
        whole, boundary = duration(known.forward.whole_s), duration(known.forward.boundary_s)
        tiles = f"tiles of {tile} by {TABLED[known.source]}{of}{table}{at}{near}"
        yield f"{tiles}: forward {whole} per whole tile, {boundary} per boundary tile; {link}{why}"
        for each in known.disagrees:
            figures = f"{each.program_cycles:,.0f} cycles in its program, {each.table_cycles:,.0f} in the table"
            yield f"{plan}: a {each.tile} tile, {each.passes}: {figures}"
    for axis, worst in (known.slower_hops or {}).items():
        yield f"the slowest hop over {axis}: {worst}"


def gather_notes(measurements: Iterable[Measurement]) -> list[Text]:
    """The plans whose all-gathers are compiled as sums."""
    said = dict.fromkeys(sentence for m in measurements if (sentence := gathers_sentence(m)))
    return [Text(f"note    {sentence}") for sentence in [*said][:MAX_NOTES]]


def plausibility_notes(measurements: Sequence[Measurement]) -> list[Text]:
    """Predictions that break a bound, and plans that are faster than a reader expects, with the reason; of many plans
    with one reason only the first."""
    broken, faster, run = list[str](), list[str](), indexed(measurements)
    for m in run:
        if why := why_implausible(m, run):
            broken.append(
                f"implausible  {m.plan}: {why}. It is not recommended. Try --method measured where it can run."
            )
        if why := why_so_fast(m, run):
            faster.append(f"note    {m.plan} {m.workload.passes}, {m.method}: {why}")
    lines = list[str]()
    for alike in (list(dict.fromkeys(broken)), list(dict.fromkeys(faster))):
        lines += alike[:MAX_NOTES]
        if more := len(alike) - MAX_NOTES:
            lines += [f"        and {more} more, each with its reason in the report"] * (more > 0)
    return [Text(line) for line in lines]


def memory_notes(measurements: Sequence[Measurement]) -> list[Text]:
    """For each workload that fits with no plan: the plan that needs least memory, and the devices that would be
    enough."""
    groups: dict[Any, list[Measurement]] = {}
    for m in measurements:
        groups.setdefault((m.workload, m.target), []).append(m)
    lines = list[Text]()
    for (workload, target), group in groups.items():
        over = [m for m in group if m.peak_bytes and m.hbm_bytes and m.peak_bytes > m.hbm_bytes]
        if not over or any(m.status != "refused" for m in group):
            continue
        least = min(over, key=lambda m: m.peak_bytes or 0)
        said = f"memory  no plan for {workload.passes} of {format_length(workload.seq_len)} tokens fits {target}. "
        needs, has = nbytes(least.peak_bytes), nbytes(least.hbm_bytes)
        said += f"{least.plan} needs the least: {needs} per device, which has {has}. "
        wider = enough_devices(least)
        said += f"Try {wider.devices} devices: {wider} is predicted to fit." if wider else "Try a shorter sequence."
        lines.append(Text(said))
    return lines


def search_notes(found: Iterable[SearchTable]) -> list[Text]:
    """How many plans of a workload were simulated, in how long, and why the others were not."""
    lines = list[Text]()
    for each in found:
        refused, work = sum(each.refused.values()), each.workload
        lines.append(
            Text(
                f"search  {len(each.plans):,} plans for {work.passes} of {format_length(work.seq_len)} tokens on "
                f"{each.target} simulated in {duration(each.took_s)}, {refused:,} refused; run.json holds all of them"
            )
        )
        often = sorted(each.refused.items(), key=lambda item: -item[1])
        lines += [Text(f"        {count:,} refused, for example: {reason}") for reason, count in often[:MAX_REASONS]]
        if more := sum(count for _, count in often[MAX_REASONS:]):
            lines.append(Text(f"        {more:,} refused for other reasons"))
    return lines


def pass_rule_notes(measurements: Iterable[Measurement]) -> list[Text]:
    """For each inference with plans that pass queries and plans that pass K/V: the choice of the published rule, with
    its inputs, and the comparison of the two here, on the fastest mesh that has both."""
    groups: dict[Any, dict[Any, dict[str, Measurement]]] = {}
    for m in sorted((m for m in measurements if m.median_s), key=lambda m: m.median_s or 0.0):
        plan = m.plan
        if m.workload.query_len and plan.scheme in (PASS_KV, PASS_Q) and plan.shards > 1:
            meshes = groups.setdefault((m.workload, m.target, m.method), {})
            meshes.setdefault(plan.mesh, {}).setdefault(plan.scheme, m)
    lines: list[Text] = []
    for meshes in groups.values():
        if best := next((each for each in meshes.values() if len(each) == 2), None):
            lines.append(Text(f"rule    {_rule(best)}"))
    return lines


def _rule(best: Mapping[str, Measurement]) -> str:
    m = best[PASS_Q]
    plan, known, work = m.plan, m.cost_source, m.workload
    tile_s = known.forward.whole_s if known and known.forward else None
    tile_flops = 2 * plan.tile.block_q * plan.tile.block_kv * (work.head_dim + work.value_dim) if plan.tile else 0
    rates = (known and known.flops_per_s) or (tile_s and tile_flops / tile_s), m.slowest_bytes_per_s
    rule = PassRule(work, plan.shards, *rates)
    many = f"{rule.enough_queries:,.0f}" if rule.enough_queries else "n/a (no rates)"
    ratio = (best[PASS_KV].median_s or 0.0) / (m.median_s or 1.0)
    misses = f"KV cache miss rate {rule.miss_rate:.2g} (pass_kv from 2 kv_heads / heads = {rule.enough_misses:.2g})"
    machine = f"{plan.shards} devices of {rate(rates[0], 'FLOP/s')} and links of {rate(rates[1], 'B/s')}"
    here = f"here pass_q is {times(ratio)} as fast ({m.method})"
    return (
        f"{rule.scheme} by arXiv:2411.01783, Algorithm 1: {misses}, queries {work.queries:,} (pass_kv from {many} on "
        f"{machine}); {here}"
    )


def exchange_notes(measurements: Iterable[Measurement]) -> list[Text]:
    """The better way to exchange states of linear attention, by length."""
    found = list(measurements)
    return [Text(f"states  {line}") for line in (*chain_and_gather(found), *state_exchanges(found))]


MAX_PACKING_PLANS = 10  # in the line about packing, the most even first


def packing_notes(measurements: Iterable[Measurement]) -> list[Text]:
    """How unevenly packed documents load the devices: plans by the tiles of their busiest device over the mean."""
    lengths: dict[int, dict[str, float]] = {}
    for m in measurements:
        if m.workload.documents and m.tiles and m.tiles.per_round and m.devices > 1:
            work = [sum(device) for device in m.tiles.per_round]
            plans = lengths.setdefault(m.workload.seq_len, {})
            plans.setdefault(str(m.plan).partition(",tile")[0], max(work) * len(work) / sum(work))
    lines = list[Text]()
    for length, plans in lengths.items():
        best = sorted(plans.items(), key=lambda plan: plan[1])[:MAX_PACKING_PLANS]
        said = "; ".join(f"{times(ratio)} {plan}" for plan, ratio in best)
        of = f" ({format_length(length)} tokens)" * (len(lengths) > 1)
        lines.append(Text(f"packing tiles of the busiest device over the mean{of}: {said}"))
    return lines


def max_length_notes(measurements: Iterable[Measurement]) -> list[Text]:
    """One line for each plan whose longest sequence was searched, with the paper's formulas."""
    lines: list[Text] = []
    for m in measurements:
        found = m.compiled_program and m.compiled_program.longest
        if not found:
            continue
        length, plan = m.workload.seq_len, m.plan
        lines += [
            Text(
                f"longest {format_length(length)} tokens ({length}), {length // plan.sequence_devices} per device",
                style="bold",
            )
            + Text(f": {plan_label(m)} {m.workload.passes}"),
            Text(f"        {format_length(int(found.refused))} is refused: {found.reason}"),
        ]
        if m.hbm_bytes:
            formulas = formula_lengths(m.workload, plan.sequence_devices, m.hbm_bytes).items()
            shown = ", ".join(f"{name} {value / 2**10:,.0f}k" for name, value in formulas)
            lines.append(
                Text(f"        by formula, activations of one layer only (arXiv:2310.01889, Table 1): {shown}")
            )
    return lines


def published_comparison_rows(measurements: Iterable[Measurement]) -> list[dict[str, str]]:
    """Speed-ups of whole training steps compared with a paper's, by column."""
    return [
        {
            **{"hardware": each.hardware, "model": each.model, "mesh": each.mesh},
            "tokens": format_length(each.seq_len),
            "paper": times(each.published),
            "here": times(each.ours),
            "method": each.method,
            "off by": NOTHING if each.error is None else f"{each.error:+.0%}",
            "TMS": times(each.tms),
            "bound": times(each.bound),
        }
        for each in published_comparisons(measurements)
    ]


def published_said(measurements: Iterable[Measurement]) -> str:
    """The overall error, and the meaning of the columns."""
    errors = [each.error for each in published_comparisons(measurements) if each.error is not None]
    if not errors:
        return PUBLISHED_COLUMNS
    ends = f"from {min(errors):+.0%} to {max(errors):+.0%} over {len(errors)} rows"
    return f"off by {statistics.median(errors):+.0%} at the median, {ends}; {PUBLISHED_COLUMNS}"


def beside_published(measurements: Iterable[Measurement], width: int) -> list[Table | Text]:
    """The comparison as a table, where there is any."""
    cells = published_comparison_rows(measurements := list(measurements))
    if not cells:
        return []
    table = fitted_table(list(cells[0]), cells, width, least=8, words=PUBLISHED_WORDS)
    return [Text(PUBLISHED_TITLE, style="bold"), table, Text(published_said(measurements)), Text("")]
