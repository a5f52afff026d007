"""The static facts of a plan, before anything runs: its tiles, the bytes that it sends, and the bounds on its gain."""

import itertools
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from stripectl.core.bounds import layer_speedup, ring_work
from stripectl.core.kernel import MIN_TILE_ROWS, kernels
from stripectl.core.layer_groups import layer_groups
from stripectl.core.layout import Tile, layouts
from stripectl.core.mask_tiles import count_pairs, count_tiles
from stripectl.core.model_config import Model
from stripectl.core.plan import Plan
from stripectl.core.scheme import schemes
from stripectl.core.sequence_sharding import sequence_sharding
from stripectl.core.validation import why_unsupported
from stripectl.core.workload import STEP, Workload
from stripectl.hardware.profile import Hardware
from stripectl.results.case import Case, StaticFacts, Subject
from stripectl.results.findings import Bound, TileTally
from stripectl.simulate.attend import KernelCall
from stripectl.simulate.cost_model import COUNTING
from stripectl.simulate.simulation import simulate
from stripectl.util.units import nbytes

SCORE_BYTES = 4
VMEM_FLAG = "xla_tpu_scoped_vmem_limit_kib"
NO_FLAGS: Mapping[str, str] = {}


def with_static_facts(case: Case, hardware: Hardware) -> Case:
    """The case with its static facts; for a hybrid model the facts of its linear layers."""
    _, workload, plan = layer_groups(case.workload, case.plan)[0]
    counted = simulate(workload, plan, COUNTING)
    forward = [each for each in counted.rounds if each.passes == "forward"]
    computed = sum(int(each.tiles.computed.sum()) * each.heads for each in forward)
    facts = facts_of_counts(case, hardware, computed, counted.sent)
    tiles = replace(facts.tiles, per_round=tuple(zip(*whole_rounds(forward), strict=True)))
    return replace(case, facts=replace(facts, tiles=tiles))


def facts_of_counts(case: Subject, hardware: Hardware, computed: int, sent: Mapping[str, int]) -> StaticFacts:
    """The static facts from the number of tiles of a forward pass over all heads and devices, without rounds."""
    _, workload, plan = layer_groups(case.workload, case.plan)[0]
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
        bound=bounds(workload, plan),
        hbm_bytes=int(memory) if memory else None,
        peak_flops_per_s=hardware.flops_per_s(workload.dtype),
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


def why_refused(plan: Plan, workload: Workload, hardware: Hardware, devices: int | None = None) -> str | None:
    """Why the plan cannot compute the workload on `devices` devices of this hardware (None: any number), or None."""
    return why_unsupported(plan, workload, hardware.kind, devices, hardware.capability)


def why_tile_exceeds_core(
    plan: Plan, workload: Workload, hardware: Hardware, flags: Mapping[str, str] = NO_FLAGS
) -> str | None:
    """Why a tile of a plan that names its tile does not fit into the memory that the compiler gives a kernel on a core,
    or None."""
    limit, passes = vmem_limit_bytes(hardware, flags), ["forward"] + ["backward"] * (workload.passes != "forward")
    for (_, own, each), which in itertools.product(layer_groups(workload, plan), passes):
        kernel, tile = kernels[each.kernel], each.tiles[which]
        if kernel.vmem_bytes is None or limit is None:
            continue  # the kernel sets its limit itself, or the limit is not known
        option, needed = "tile" if which == "forward" else which, dict[Tile, int]()
        for smaller in halved(tile):
            needed[smaller] = kernel.vmem_bytes(own, replace(each, **{option: smaller}), which)
        if needed[tile] > limit:
            fits = next((f"{option}={smaller}" for smaller, size in needed.items() if size <= limit), "a smaller tile")
            return (
                f"the {which} tile {tile} of {each.kernel} takes {nbytes(needed[tile])} of a core's memory, and the "
                f"compiler gives a kernel {nbytes(limit)}. Try {fits}, or --kernel pallas_tpu."
            )
    return None


def vmem_limit_bytes(hardware: Hardware, flags: Mapping[str, str]) -> float | None:
    """The memory of a core that the compiler gives a kernel: by a plan's flag, by the flag of the environment, or by
    itself."""
    around = re.findall(rf"{VMEM_FLAG}=(\d+)", os.environ.get("LIBTPU_INIT_ARGS", ""))
    given = flags.get(VMEM_FLAG, around[-1] if around else "")
    return int(given) * 2**10 if given.isdecimal() else hardware.figure("vmem_limit_bytes")


def halved(tile: Tile) -> Iterator[Tile]:
    """The tile, and smaller and smaller tiles: the longer side has half the rows each time."""
    yield tile
    while max(tile.sides) > MIN_TILE_ROWS:
        q, kv = tile.sides
        q, kv = (q // 2, kv) if q > kv else (q, kv // 2)
        tile = Tile(q, kv, tile.block_kv_compute and math.gcd(kv, tile.block_kv_compute))
        yield tile


def why_scores_exceed_memory(workload: Workload, plan: Plan, hardware: Hardware) -> str | None:
    """Why the scores that a device keeps do not fit in its memory, for a kernel that keeps scores, or None."""
    memory = hardware.figure("hbm_bytes") or host_bytes(hardware)
    if memory is None or not any(kernels[each.kernel].score_touches for _, _, each in layer_groups(workload, plan)):
        return None
    whole = workload.queries * workload.seq_len * workload.heads * workload.batch * SCORE_BYTES / plan.devices
    if whole <= memory:
        return None
    return f"its scores take {nbytes(whole)} per device, which has {nbytes(memory)}. Try --scheme ring."


def host_bytes(hardware: Hardware) -> int | None:
    """The memory of this machine, for a CPU."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hardware.kind == "cpu" else None


def bounds(workload: Workload, plan: Plan) -> Bound:
    """The largest speed-up over the contiguous layout on the same mesh: of attention, and of a layer of the model; None
    where there are fewer queries than keys, documents, or linear attention, which no layout balances."""
    if workload.query_len is not None or workload.documents is not None or workload.attention == "linear":
        return Bound()
    layout, rows, tile = layouts[plan.layout], workload.seq_len // plan.shards, plan.tile or Tile(1, 1)
    if layouts["contiguous"].why_unsupported(workload.seq_len, plan.shards):
        return Bound()
    slow, fast = (
        float(ring_work(each, plan.shards, rows, workload.window, tile).critical_tiles * tile.scores)
        for each in (layouts["contiguous"], layout)
    )
    layer = None
    if workload.model is not None:
        model = workload.sizes if workload.passes == STEP else Model.load(workload.model)
        layer = layer_speedup(model, workload.seq_len, plan.shards, (slow, fast), 1.0, "swiglu")
    return Bound(attention_only=slow / fast, layer=layer)
