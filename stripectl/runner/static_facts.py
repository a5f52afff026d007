"""The static facts of a plan, before anything runs: its tiles, the bytes that it sends, and the bounds on its gain."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from stripectl.core.bounds import layer_speedup, ring_work
from stripectl.core.kernel import kernels
from stripectl.core.layer_groups import layer_groups, mean_bytes, mean_of_layers
from stripectl.core.layout import Layout, Tile, layouts
from stripectl.core.mask_tiles import count_pairs, count_tiles
from stripectl.core.plan import Plan
from stripectl.core.reason import Reason, ReasonKind
from stripectl.core.scheme import schemes
from stripectl.core.sequence_sharding import sequence_sharding
from stripectl.core.workload import STEP, Workload
from stripectl.costs.cost_model import COUNTING
from stripectl.errors import StripectlError
from stripectl.hardware.profile import Hardware
from stripectl.models.model_files import load_model
from stripectl.results.case import Case, StaticFacts, Subject
from stripectl.results.findings import Bound, TileTally
from stripectl.simulate.attend import KernelCall
from stripectl.simulate.simulation import simulate
from stripectl.util.plug_in_errors import plug_in_reason, show_traceback

SCORE_BYTES = 4


def with_static_facts(case: Case, hardware: Hardware) -> Case:
    """Add static facts to a case, with the tiles of the first group of its layers; refuse it where its `unroll` changes
    nothing, and failed where its scheme raises an error. A case that has facts, or is not ready, stays."""
    if case.facts or not case.is_ready:
        return case
    try:
        return _with_counts(case, hardware)
    except StripectlError:
        raise
    except Exception as error:  # a scheme may be foreign code, and must not break the others
        show_traceback(error)
        reason = Reason(ReasonKind.ERROR, f"counting the tiles of this scheme failed: {plug_in_reason(error)}")
        return replace(case, status="failed", reason=reason)


def _with_counts(case: Case, hardware: Hardware) -> Case:
    layers = case.layers[:1] if case.workload.passes == STEP else case.layers  # a step counts its bytes itself
    counted, *others = (simulate(own, plan, COUNTING) for _, own, plan in layers)
    if reason := why_not_unrolled(case.plan, max(each.turns for each in (counted, *others))):
        return replace(case, status="refused", reason=reason)
    forward = [each for each in counted.rounds if each.passes == "forward"]
    computed = sum(int(each.tiles.computed.sum()) * each.heads for each in forward)
    sent = mean_bytes(layers, [each.sent for each in (counted, *others)])
    facts = facts_of_counts(case, hardware, computed, sent)
    tiles = replace(facts.tiles, per_round=tuple(zip(*whole_rounds(forward), strict=True)))
    return replace(case, facts=replace(facts, tiles=tiles))


def why_not_unrolled(plan: Plan, turns: int) -> Reason | None:
    """Why a plan whose longest loop has this number of iterations cannot be unrolled, or None."""
    if plan.unroll == 1 or turns > 1:
        return None
    loop = "a loop of one round" if turns else "no loop of rounds"
    return Reason.unsupported(
        f"unroll={plan.unroll} has no effect because {plan.scheme} has {loop} on this mesh", "Omit unroll."
    )


def facts_of_counts(case: Subject, hardware: Hardware, computed: int, sent: Mapping[str, int]) -> StaticFacts:
    """The static facts from the number of tiles of a forward pass over all heads and devices, of the first group of
    layers, without rounds."""
    _, workload, plan = case.layers[0]
    alike = plan.devices // math.prod(plan.size(axis) for axis in schemes[plan.scheme].axes)
    every = workload.heads * workload.batch // alike
    computed //= every
    tile = plan.tile or Tile(1, 1)
    useful, scores = workload.pairs, computed * tile.scores
    if workload.attention == "linear":
        useful, scores = chunk_scores(workload, plan, tile)
    memory = hardware.figure("hbm_bytes")
    return StaticFacts(
        tiles=TileTally(
            tile=str(tile),
            computed=computed,
            useful=useful,
            efficiency=useful / scores if scores else 1.0,
            padding=padded_rows(workload, plan, tile),
        ),
        bytes=dict(sent),
        bound=bounds(case.workload, case.plan),
        hbm_bytes=int(memory) if memory else None,
        peak_flops_per_s=hardware.flops_per_s(workload.dtype),
        links_bytes_per_s_one_way=hardware.links_bytes_per_s_one_way,
    )


def padded_rows(workload: Workload, plan: Plan, tile: Tile) -> int:
    """The rows that padding to the tile adds to the queries of a shard, or, where more, to its keys."""
    sharding, kernel = sequence_sharding(workload, plan), kernels[plan.kernel]
    pieces = (sharding.query_piece, tile.block_q), (sharding.key_piece, tile.block_kv)
    return sharding.layout.pieces * max(kernel.padded(rows, side) - rows for rows, side in pieces)


def whole_rounds(rounds: Sequence[KernelCall]) -> list[list[int]]:
    """Tiles of every device by round, for one head; calls for parts of the heads count together as one round."""
    found, part = list[tuple[np.ndarray, int]](), 1.0
    for each in rounds:
        tiles, heads = each.tiles.computed * each.heads, each.heads
        if part > 1 - 1e-9:
            part = 0.0
        else:
            before, known = found.pop()
            tiles, heads = before + tiles, known + heads
        part += each.part
        found.append((tiles, heads))
    return [(tiles // heads).tolist() for tiles, heads in found]


def chunk_scores(workload: Workload, plan: Plan, tile: Tile) -> tuple[int, int]:
    """(scores that the mask keeps, scores computed) of a shard with its own keys, for linear attention."""
    bands, area = sequence_sharding(workload, plan).bands(0, 0), tile.scores
    counted = count_tiles(bands, tile)
    return int(count_pairs(bands) - counted.whole * area), int(counted.boundary * area)


def bounds(workload: Workload, plan: Plan) -> Bound:
    """The largest speed-up over the contiguous layout on the same mesh: of attention, and of a layer of the model; None
    where there are fewer queries than keys, documents, or linear attention, which no layout balances."""
    groups = layer_groups(workload, plan)
    workload, plan = groups[0].workload, groups[0].plan
    if workload.query_len is not None or workload.documents is not None or workload.attention == "linear":
        return Bound()
    layout, rows = layouts[plan.layout], workload.seq_len // plan.shards
    if layouts["contiguous"].why_unsupported(workload.seq_len, plan.shards):
        return Bound()

    def critical_scores(layout: Layout) -> float:
        tiles = ((own.window, each.tile or Tile(1, 1)) for _, own, each in groups)
        paths = [ring_work(layout, plan.shards, rows, *each).critical_tiles * each[1].scores for each in tiles]
        return mean_of_layers(groups, [float(scores) for scores in paths])

    slow, fast = critical_scores(layouts["contiguous"]), critical_scores(layout)
    layer = None
    if workload.model is not None:
        model = workload.sizes if workload.passes == STEP else load_model(workload.model)
        matrices = model.architecture.feed_forward_matrices
        layer = layer_speedup(model, workload.seq_len, plan.shards, (slow, fast), 1.0, matrices)
    return Bound(attention_only=slow / fast, layer=layer)
