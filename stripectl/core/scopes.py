"""Names of places in a program, without JAX: `jax.named_scope` and Pallas kernels write them; `hlo` and `profiling`
read them in programs that XLA prints and in profiles."""

import re
from collections.abc import Mapping

ATTEND = "attend_"  # of a pair of shards, in any pass
ATTEND_FORWARD, ATTEND_BACKWARD = f"{ATTEND}forward", f"{ATTEND}backward"

# A kernel's loop over a row of tiles, and the tiles of a row, by kind.
TILE_ROW, WHOLE_TILE, BOUNDARY_TILE = "tile_row", "whole_tile", "boundary_tile"
KINDS_OF_TILES: Mapping[str, str] = {WHOLE_TILE: "whole", BOUNDARY_TILE: "boundary", TILE_ROW: "row"}

# The parts of a training step.
ATTENTION, PROJECTIONS, FEED_FORWARD = "attention", "projections", "feed_forward"
HEAD, EMBEDDING, OPTIMIZER = "head", "embedding", "optimizer"
SECTIONS = (ATTENTION, PROJECTIONS, FEED_FORWARD, HEAD, EMBEDDING, OPTIMIZER)
NORM, ROTARY = "norm", "rotary"  # inside of parts

SHIFT, ALL_GATHER, ALL_TO_ALL = "shift", "all_gather", "all_to_all"
REDUCE_SCATTER, REDUCE = "reduce_scatter", "reduce"
MOVED = re.compile(rf"\b(?:{SHIFT}|{ALL_GATHER})_([a-z]+)_\d+")  # -> what moves

HOP = re.compile(r"stripectl_(forward|backward)_hop_([a-z]+)_(\d+)_of_(\d+)")  # -> pass, axis, arrays, parts


def transfer_scope(collective: str, what: str, call: int) -> str:
    """The scope of the call-th transfer of a program, for `MOVED`; `what` is the scheme's name for the data."""
    return f"{collective}_{what}_{call}"


def hop_kernel(kernel: str, axis: str, arrays: int, parts: int) -> str:
    """The name of a Pallas kernel that sends arrays along an axis while it computes, in several parts, for `HOP`."""
    return f"{kernel}_hop_{axis}_{arrays}_of_{parts}"
