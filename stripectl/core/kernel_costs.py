"""The costs of a kernel's calls: the record from which its time and its memory are predicted; nothing here runs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from stripectl.core.layout import Tile


class PallasKernel(NamedTuple):
    """One of the Pallas kernels of a pass."""

    name: str  # a part of its name in the HLO that no other kernel of the pass has
    matmuls: int  # per tile
    per_kv_head: bool = False  # its lines are columns of tiles, per key/value head, not rows
    only_live: bool = False  # its grid holds live tiles only, and whole tiles run without a mask
    shared: bool = True  # the cores of a device share its grid; otherwise one core runs the whole grid
    blocks: int = 0  # that each step loads or stores: K and V, or Q and dO, and dQ where it is added to outside
    chunks: Literal["whole", "boundary"] = "whole"  # of a recurrence: the kind of tiles that it computes


@dataclass(frozen=True)
class KernelCosts:
    """The memory, the traffic and the work of a kernel's calls, besides the products of its tiles.

    bundles[pass] -> the Pallas kernels of the pass, whose tiles a TPU's compiler estimates only in its bundles; empty
        for a kernel that XLA compiles.
    tile_costs_of[pass] -> the kernel whose tiles this kernel computes, where that is another kernel: their cost is
        equal.
    moved_bytes_per_element[pass] -> bytes that a call reads and writes in memory for each element of its queries,
        in addition to its tiles: for queries that are scaled or transposed beforehand.
    merged_bytes_per_element[pass] -> bytes in addition where the result is merged with other results.
    in_stages: it computes a chunk of a recurrence in stages, which exchange their results through memory.
    query_copies[pass] -> how many copies of the queries a call holds in memory while it runs; merged_copies[pass] ->
        how many in addition where the result is merged.
    sum_lanes: how many float32 lanes the library fills with a log-sum-exp. A call holds them all, unless its result is
        merged, which takes their place; for a backward pass they are turned first, and so held twice.
    saved_score_tiles[pass] -> how many float32 arrays of a tile's scores it holds while it runs.
    dq_sums(keys of a piece, tile) -> how many partial sums of dQ, each as large as the queries, a backward pass keeps
        in memory and adds up at its end, and how many arrays of this size it reads and writes for that. None for a
        kernel that keeps one dQ.
    vmem_bytes(workload, plan, pass, cores of a device) -> the memory of a TPU core that a tile of the pass takes. None
        for a kernel whose tiles always fit.
    vmem_wanted: the memory of a core that the kernel asks its compiler for; None where it leaves the compiler's limit
        as it is.
    rows_per_fetch: how many rows of tiles share a fetch of keys and values from memory, because they run at once.
    score_touches[pass] -> how often each score is written to or read from memory by a kernel that keeps all scores;
        such a kernel takes no tile: its tile is a whole piece of a shard.
    hides_workspace: a compiler does not know the memory that the kernel's library takes while it runs.
    """

    bundles: Mapping[str, tuple[PallasKernel, ...]] = field(default_factory=dict[str, tuple[PallasKernel, ...]])
    tile_costs_of: Mapping[str, str] = field(default_factory=dict[str, str])
    moved_bytes_per_element: Mapping[str, int] = field(default_factory=dict[str, int])
    merged_bytes_per_element: Mapping[str, int] = field(default_factory=dict[str, int])
    in_stages: bool = False
    query_copies: Mapping[str, int] = field(default_factory=dict[str, int])
    merged_copies: Mapping[str, int] = field(default_factory=dict[str, int])
    sum_lanes: int = 0
    saved_score_tiles: Mapping[str, int] = field(default_factory=dict[str, int])
    dq_sums: Callable[[int, Tile], tuple[int, int]] | None = None
    vmem_bytes: Callable[[Any, Any, str, int], int] | None = None
    vmem_wanted: int | None = None
    rows_per_fetch: int = 1
    score_touches: Mapping[str, int] = field(default_factory=dict[str, int])
    hides_workspace: bool = False

    @property
    def masks_all(self) -> bool:
        """Whether it masks every tile of a pair of shards that has a boundary, and visits the dead tiles."""
        parts = [part for of_pass in self.bundles.values() for part in of_pass]
        return bool(parts) and not any(part.only_live for part in parts)
