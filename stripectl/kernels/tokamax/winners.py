"""The tiles that tokamax's own sweeps found fastest, from the data of the installed package: where a search for tiles
begins. One file per device and pass holds the winner of each shape."""

import importlib.util
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from stripectl.core.kernel import KnownTile
from stripectl.core.layout import Tile
from stripectl.core.lengths import format_length
from stripectl.util.json import JsonObject, is_mapping

FOLDER = "data/autotuning"
OPERATIONS = ("splash_attention", "flash_attention")
ENDINGS = {"forward": ("", ""), "backward": ("_vjp", "_dkv")}  # of a file, and of the names of a tile's sides
ARRAY = re.compile(r"\w+\[([\d,]+)\]")


class Shape(NamedTuple):
    """The sizes that a sweep depends on: rows of queries and of keys, key and value heads, query heads per key head."""

    queries: int
    keys: int
    head_dim: int
    v_head_dim: int
    group: int
    causal: bool

    def distance(self, other: "Shape") -> tuple[float, ...]:
        """How far another shape is: the sizes of heads first, then the rows, then the groups."""

        def apart(*names: str) -> float:
            return sum(abs(math.log2(getattr(self, name) / getattr(other, name))) for name in names)

        return apart("head_dim", "v_head_dim"), apart("queries", "keys"), apart("group")


def nearest_winner(device_kinds: Sequence[str], wanted: Shape, passes: str) -> KnownTile | None:
    """The winner of the shape that is nearest to `wanted` and has its mask; None where the package is not installed, or
    has no such winner."""
    known = [found for found in winners(tuple(device_kinds), passes) if found[0].causal == wanted.causal]
    if not known:
        return None
    shape, tile = min(known, key=lambda each: wanted.distance(each[0]))
    heads = str(shape.head_dim) if shape.head_dim == shape.v_head_dim else f"{shape.head_dim}/{shape.v_head_dim}"
    rows = f"{format_length(shape.queries)} queries and {format_length(shape.keys)} keys"
    return KnownTile(
        tile, f"the fastest in the sweep of tokamax {metadata.version('tokamax')} for {rows}, heads of {heads}"
    )


@cache
def winners(device_kinds: tuple[str, ...], passes: str) -> list[tuple[Shape, Tile]]:
    """(shape, tile) of every winner of a device."""
    package = importlib.util.find_spec("tokamax")
    roots = [Path(each) / FOLDER for each in (package.submodule_search_locations or ())] if package else []
    folders = [root / kind.lower().replace(" ", "_") for root in roots for kind in device_kinds]
    ending = ENDINGS[passes][0]
    files = [folder / f"pallas_mosaic_tpu_{name}{ending}.json" for folder in folders for name in OPERATIONS]
    return [found for file in files if file.exists() for found in read_winners(json.loads(file.read_text()), passes)]


def read_winners(content: Mapping[str, JsonObject], passes: str) -> Iterator[tuple[Shape, Tile]]:
    """The winners in a file: its keys are arguments, its values tiles with their timings, both as JSON."""
    suffix = ENDINGS[passes][1]
    names = [f"block_{side}{suffix}" for side in ("q", "kv")] + [f"block_kv{suffix}_compute"]
    for arguments, tiles in content.items():
        shape = read_shape(json.loads(arguments))
        config: JsonObject = json.loads(next(iter(tiles), "{}"))
        sides = [side for name in names if (side := config.get(name)) and isinstance(side, int)]
        if shape and len(sides) == len(names):
            yield shape, Tile(*sides)


def read_shape(arguments: JsonObject) -> Shape | None:
    """The shape of a call; None where its mask is neither causal nor absent, or it has other parts."""
    given, parts = arguments.get("mask"), ("bias", "segment_ids", "sinks", "paging_info", "attn_logits_soft_cap")
    mask = given if is_mapping(given) else {}
    if mask.get("bool_mask") or any(arguments.get(part) for part in parts):
        return None
    limits = mask.get("causal_mask")
    if limits and (limits.get("window_size") or limits.get("offset")):
        return None
    arrays = [ARRAY.match(str(arguments.get(name))) for name in ("q", "k", "v")]
    q, k, v = ([int(size) for size in array[1].split(",")] if array else [] for array in arrays)
    if [len(q), len(k), len(v)] == 3 * [4]:  # batch, rows, heads, head_dim
        (_, rows, heads, head_dim), (_, columns, kv_heads, _) = q, k
    elif [len(q), len(k), len(v)] == 3 * [3]:  # heads, rows, head_dim
        (heads, rows, head_dim), (kv_heads, columns, _) = q, k
    else:
        return None
    return Shape(rows, columns, head_dim, v[-1], heads // kv_heads, bool(limits or mask.get("is_causal")))
