"""A plan's program compared with dense float64 attention, at a size that dense attention can compute.

The measured program is checked, on the same devices, with its workload and tiles scaled down in proportion.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from stripectl.core.defaults import usual_tile
from stripectl.core.kernel import kernels
from stripectl.core.layer_groups import layer_groups
from stripectl.core.layout import SLIDING, Tile, layouts
from stripectl.core.plan import Plan
from stripectl.core.sequence_sharding import axes_of, min_heads, query_sharding, sequence_sharding
from stripectl.core.workload import STEP, Workload
from stripectl.execute.program import PlanProgram, as_recurrence_has
from stripectl.execute.reference import reference_attention
from stripectl.results.findings import Check
from stripectl.util.units import plural

CHECKED_LEN = 2048  # float64 dense attention of this length takes a second
FLOAT32 = 2e-6  # of the largest value: sums of some thousand terms
UNIT_ROUNDOFF = 2.0**-8  # of bfloat16, which has 8 significant bits: the largest relative error of a rounding
# The roundings to bfloat16 that a gradient passes through in every kernel: of the weights of the values (or of scores
# in a chunk), of the output, which it reads again through delta, of the gradient of the scores, and of itself.
ROUNDINGS = 4


def roundings(workload: Workload, plan: Plan) -> int:
    """How many roundings to bfloat16 lie between the arguments of a plan's attention and its gradients."""
    return ROUNDINGS + kernels[plan.kernel].roundings(workload.head_dim)


def tolerance(workload: Workload, plan: Plan, platform: str = "cpu") -> float:
    """The largest error that a plan may have, relative to the largest value. Accelerators multiply float32 in
    TensorFloat-32 or bfloat16.

    To first order the errors of roundings add up, and each changes a result by at most the unit roundoff of the largest
    value: a rounding of the result, or of the output, changes the largest value by as much, and the roundings inside a
    sum, whose signs differ, average out in sums of many terms (Higham and Mary 2019, doi:10.1137/18M1226312). Margins
    that were measured: benchmarks/README.md "Rounding to bfloat16".
    """
    if workload.dtype == "float32" and platform == "cpu":
        return FLOAT32
    return roundings(workload, plan) * UNIT_ROUNDOFF


def cut_to_checkable(workload: Workload, plan: Plan) -> tuple[Workload, Plan]:
    """The workload scaled down to a size that dense attention can compute, and the plan with tiles scaled in
    proportion: as many devices, the same layout and kernel, one key/value group per device, at least two tiles per
    side. Where the kernel pads the plan's rows, it pads these rows too."""
    pieces, kernel = plan.shards * layouts[plan.layout].pieces, kernels[plan.kernel]
    divisor = math.lcm(plan.sequence_devices // plan.shards, plan.parts)
    unit = math.lcm(kernel.tile_multiple, divisor)
    piece = -(-max(16, CHECKED_LEN // pieces) // unit) * unit
    if plan.tile and any(kernel.pads(tile, workload.seq_len // pieces) for tile in plan.tiles.values()):
        piece += divisor
    small = cut_workload(workload, plan, pieces * piece)
    if kernel.keeps_all_scores:
        return small, replace(plan, tile=usual_tile(plan, small, "cpu"))
    assert plan.tile is not None
    backward = plan.backward or plan.tile
    shrink = min(1.0, piece / 2 / max(*plan.tile.sides, *backward.sides))

    def cut(tile: Tile) -> Tile:
        smaller = Tile(int(tile.block_q * shrink), int(tile.block_kv * shrink), tile.block_kv_compute)
        return kernel.largest_tile(smaller, piece)

    tile, queries = cut(plan.tile), sequence_sharding(small, plan).query_piece
    tile = tile._replace(block_q=min(tile.block_q, queries))
    return small, replace(plan, tile=tile, backward=plan.backward and cut(backward))


def cut_workload(workload: Workload, plan: Plan, seq_len: int) -> Workload:
    """Cut a workload to at most `seq_len` keys, as few heads and requests as the plan can divide, and queries,
    documents and a sliding window in proportion."""
    devices = plan.product(axes_of(plan, query_sharding(workload, plan))[0])
    part = seq_len / workload.seq_len

    def scaled(length: int, unit: int = 1) -> int:
        return max(1, round(length * part / unit)) * unit

    dealt = plan.shards * layouts[plan.layout].pieces if query_sharding(workload, plan) == "rows" else 1
    left = workload.window.left
    return replace(
        workload,
        seq_len=seq_len,
        batch=devices,
        **min_heads(workload, plan),
        query_len=workload.query_len and min(workload.query_len, scaled(workload.query_len, dealt)),
        documents=workload.documents and tuple(map(scaled, workload.documents)),
        mask=workload.mask if left is None else f"{SLIDING}{scaled(left + 1)}",
    )


def check_attention(workload: Workload, plan: Plan, devices: Sequence[Any]) -> Check:
    """The plan's attention at a checkable size against dense attention: the largest error of this process's shards; for
    a training step the error of a layer, and for a hybrid model of the worse kind of layer."""
    passes = "forward-backward" if workload.passes == STEP else workload.passes
    found = [check_layer(own.one_layer(passes), each, devices) for _, own, each in layer_groups(workload, plan)]
    worst = max(found, key=lambda check: check.error)
    return replace(worst, reference="; ".join(each.reference for each in found))


def check_layer(workload: Workload, plan: Plan, devices: Sequence[Any]) -> Check:
    """The check of one layer's attention."""
    workload, plan = cut_to_checkable(workload, plan)
    program = PlanProgram(workload, plan, devices)
    arrays = random_arrays(program)
    values = program.with_sums(program.function(*program.place(arrays)))
    expected = reference_attention(workload, *with_cotangent(workload, arrays))
    worst = 0.0
    for value, reference, order in zip(values, expected, program.result_orders, strict=False):
        laid, scale = reference[:, :, order], np.max(np.abs(reference))
        for shard in value.addressable_shards:
            error = float(np.max(np.abs(np.asarray(shard.data, np.float64) - laid[shard.index])) / scale)
            worst = error if np.isnan(error) else max(worst, error)
    kind = "dense float64" if workload.attention == "softmax" else "token by token, float64"
    tiles = f"tile {plan.tile}" + (f", backward {plan.backward}" if plan.backward else "")
    return Check(
        max_rel_error=worst,
        tolerance=tolerance(workload, plan, devices[0].platform),
        reference=f"{kind}, {workload.seq_len} tokens, {plural(workload.heads, 'head')}, {tiles}",
    )


def random_arrays(program: PlanProgram, seed: int = 0) -> list[np.ndarray]:
    """Arguments of a program on the host, in natural order."""
    rng = np.random.default_rng(seed)
    normal = [rng.standard_normal(x.shape, np.float32).astype(x.dtype) for x in program.shapes]
    made = as_recurrence_has(program.workload.gated, normal, np)
    return [x.astype(like.dtype) for x, like in zip(made, program.shapes, strict=True)]


def with_cotangent(workload: Workload, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The arguments of a program, with a cotangent of zeros where it takes none."""
    if workload.passes != "forward":
        return [*arrays]
    q = arrays[0]
    return [*arrays, np.zeros((q.shape[0], workload.heads, q.shape[2], workload.value_dim), q.dtype)]
