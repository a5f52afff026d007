"""Simulated `attend`: the time of a kernel's call on every device at once.

Devices along the axes that divide heads and batch are equal.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from stripectl.core.attend import PartialResult
from stripectl.core.comm import ELEMENTS, HEADS, ROWS
from stripectl.core.kernel import kernels
from stripectl.core.layout import WHOLE, Halo, Part, Tile
from stripectl.core.mask_tiles import TileCount
from stripectl.core.mesh import HEAD_AXES
from stripectl.core.plan import STATES, Plan
from stripectl.core.sequence_sharding import sequence_sharding
from stripectl.core.workload import DTYPE_BYTES, Workload
from stripectl.costs.padding import ACCUMULATOR_BYTES, padding_traffic
from stripectl.results.tile_cost import TileCost
from stripectl.simulate.clocks import DeviceClocks, Gradients
from stripectl.simulate.memory import TimedArray, latest, leaves, map_leaves
from stripectl.simulate.tile_counts import busiest_processors, count_round

SCORE_BYTES = 4
VALUES = "values"  # a round of weighted values, whose scores had their own round


class KernelCall(NamedTuple):
    """One kernel call on every device at once. Fields: start and end times, tile counts, the number of (batch x head)
    slices that each tile covers, the fraction of the shard's heads, and the fraction of a full call's work."""

    passes: str
    start_s: np.ndarray
    end_s: np.ndarray
    tiles: TileCount
    heads: int
    part: float
    share: float


class SimulatedAttend:
    """Simulated `attend`: a call costs the time of its tiles, on every device at once, and an operation without tiles
    costs nothing. Only the output of a state takes memory. `tiles` holds the tiles of every plan, by pass."""

    saves_output = False  # for the backward pass

    def __init__(
        self,
        workload: Workload,
        plan: Plan,
        clocks: DeviceClocks,
        tiles: Mapping[str, tuple[Tile, ...]],
    ) -> None:
        self.clocks, self.sharding, self.tiles = clocks, sequence_sharding(workload, plan), tiles
        self.kernel, self.kv_heads = kernels[plan.kernel], workload.kv_heads // plan.product(HEAD_AXES)
        self.score_bytes = {  # bytes of the scores that a call holds, by pass
            passes: SCORE_BYTES
            * self.kernel.costs.saved_score_tiles.get(passes, 0)
            * np.array([tile.scores for tile in own])
            for passes, own in tiles.items()
        }
        self.pads = {  # which plans pad, by pass and number of rows
            (passes, rows): padded
            for passes, own in tiles.items()
            for rows in {self.sharding.key_piece, *(halo.rows for halo in self.sharding.halos())}
            if (padded := np.array([self.kernel.pads(tile, rows) for tile in own])).any()
        }
        keys, dq_sums = self.sharding.key_piece, self.kernel.costs.dq_sums
        sums = [dq_sums(keys, tile) for tile in tiles.get("backward", ())] if dq_sums else []
        self.dq_sums = np.array(sums)  # (plans, [partial sums of dQ, arrays moved for them])
        self.value_dim = workload.value_dim
        self.keeps, self.itemsize = plan.states == STATES[0], DTYPE_BYTES[workload.dtype]
        self.rounds_run = list[KernelCall]()
        self.alone: dict[str, TileCount] = {}  # tiles of a shard with itself, by pass
        self.starts = None if workload.starts is None else tuple(workload.starts.tolist())

    @property
    def sees_future(self) -> bool:
        return self.sharding.window.sees_future

    def rounds(self, by: int = 1) -> int:
        return self.sharding.rounds(by)

    def empty(self, q: TimedArray) -> Any:
        return self._zeros(q.sized(ELEMENTS, self.value_dim).at(q.ready))

    def query(self, q: TimedArray) -> TimedArray:
        """A wider copy where a backward pass adds its contributions to it."""
        return self.clocks.free(q.shape, ACCUMULATOR_BYTES, q) if self.clocks.recording else q

    def __call__(self, q: TimedArray, kv: Any, me: Any, src: Any, *, into: Any, part: Part = WHOLE) -> Any:
        cost, needs = self.clocks.machine.forward, [q, into, *leaves(kv)]
        out, before = into.at(self._compute("forward", cost, q, me, src, needs, part)), into.bare
        self._record_call(out, q, kv, me, src, part, before)
        return out

    def _record_call(
        self,
        out: TimedArray,
        q: TimedArray,
        kv: Any,
        me: Any,
        src: Any,
        part: Part,
        before: TimedArray | None = None,
        kept: Sequence[TimedArray] = (),
    ) -> None:
        """Record the transpose of a call that added to the output `before`. `kept` are other values that it needs."""

        def transpose(given: TimedArray, gradients: Gradients) -> None:
            needs = [given, q, *leaves(kv), *kept]
            end = self._compute("backward", self.clocks.machine.backward, q, me, src, needs, part)
            self.clocks.ledger.beside(sum(leaf.elements for leaf in (q, *leaves(kv))) * ACCUMULATOR_BYTES)
            for primal in (q, *leaves(kv)):
                gradients.add(primal, end)
            if before is not None:
                gradients.add(before, given.ready, given.memory)

        self.clocks.record(out, transpose)

    def backward(
        self, saved: Any, kv: Any, me: Any, src: Any, *, into: Any, part: Part = WHOLE
    ) -> tuple[TimedArray, Any]:
        cost, needs = self.clocks.machine.backward, [*leaves(saved), into, *leaves(kv)]
        end = self._compute("backward", cost, saved[0], me, src, needs, part)
        return into.at(end), map_leaves(lambda leaf: self.clocks.allocate(leaf.shape, ACCUMULATOR_BYTES, end), kv)

    def partial(self, q: TimedArray, state: Any) -> PartialResult:
        lse = self.clocks.free(q.shape[: ROWS + 1], ACCUMULATOR_BYTES, state)
        return PartialResult(self.finish(q, state), lse)

    def finish(self, q: TimedArray, state: Any) -> TimedArray:
        """The output, in the dtype of the queries."""
        return self.clocks.moved(state.shape, q.itemsize, state, times=1 + state.itemsize / q.itemsize)

    def merge(self, state: Any, partial: Any) -> Any:
        return self.clocks.moved(state.shape, state.itemsize, state, *leaves(partial), times=3, in_place=True)

    def split(self, kv: Any, parts: int) -> list[Any]:
        if parts == 1:
            return [kv]

        def cut(leaf: TimedArray) -> TimedArray:
            size = leaf.shape[ROWS] // parts
            return self.clocks.moved(leaf.sized(ROWS, size).shape, leaf.itemsize, leaf, times=2)

        return [map_leaves(cut, kv) for _ in range(parts)]

    def join(self, parts: Sequence[Any]) -> Any:
        if len(parts) == 1:
            return parts[0]

        def join(*pieces: TimedArray) -> TimedArray:
            rows = sum(piece.shape[ROWS] for piece in pieces)
            return self.clocks.moved(pieces[0].sized(ROWS, rows).shape, pieces[0].itemsize, *pieces, times=2)

        return map_leaves(join, *parts)

    def halos(self) -> list[Halo]:
        return self.sharding.halos()

    def adjacent_runs(self, by: int) -> list[list[tuple[int, int] | None]]:
        return self.sharding.adjacent_runs(by)

    def ends(self, x: Any, rows: int) -> list[Any]:
        runs = self.sharding.layout.pieces

        def cut(leaf: TimedArray) -> TimedArray:
            if runs == 1 and leaf.shape[ROWS] == rows:
                return leaf
            return self.clocks.moved(leaf.sized(ROWS, rows).shape, leaf.itemsize, leaf, times=2)

        return [map_leaves(cut, x) for _ in range(runs)]

    def add_ends(self, x: Any, ends: Sequence[Any]) -> Any:
        """The ends are added in place. Only backward passes add them, so there is no transpose."""
        assert not self.clocks.recording

        def add(leaf: TimedArray, *own: TimedArray) -> TimedArray:
            return leaf.at(self.clocks.touch(3 * sum(end.nbytes for end in own), leaf, *own))

        return map_leaves(add, x, *ends)

    def zeros(self, saved: Any) -> Any:
        return self._zeros(saved[0])

    def _zeros(self, q: TimedArray) -> TimedArray:
        return self.clocks.allocate(q.shape, ACCUMULATOR_BYTES, self.clocks.touch(q.elements * ACCUMULATOR_BYTES, q))

    def add(self, a: Any, b: Any) -> Any:
        def total(x: TimedArray, y: TimedArray) -> TimedArray:
            """A sum, which takes new memory in XLA before the memory of its first term is free."""
            self.clocks.ledger.beside(x.nbytes)
            return self.clocks.moved(x.shape, x.itemsize, x, y, times=3, in_place=True)

        return map_leaves(total, a, b)

    def local_part(self, q: TimedArray, kv: Any, me: Any, part: tuple[int, int], *, into: TimedArray) -> TimedArray:
        return into.at(self._share("forward", q, [q, into, *leaves(kv)], me, part))

    def local_part_backward(
        self, saved: Any, kv: Any, me: Any, part: tuple[int, int], *, into: TimedArray
    ) -> TimedArray:
        needs = [*leaves(saved), into, *leaves(kv)]
        return into.at(self._share("backward", saved[0], needs, me, part, 1 / 3))

    def keys_backward(self, saved: Any, kv: Any, me: Any) -> Any:
        end = self._share("backward", saved[0], [*leaves(saved), *leaves(kv)], me, WHOLE, 2 / 3)
        return map_leaves(lambda leaf: self.clocks.allocate(leaf.shape, ACCUMULATOR_BYTES, end), kv)

    def _share(
        self, passes: str, q: TimedArray, needs: list[TimedArray], me: Any, part: tuple[int, int], share: float = 1.0
    ) -> np.ndarray:
        """When each device has computed a share of a shard's own tiles, for a part of the heads. A chunk's backward
        pass has three tiles of each kind."""
        group, pairs = q.shape[HEADS] // self.kv_heads, q.shape[0] * self.kv_heads
        first, last = (place * pairs // part[1] for place in (part[0], part[0] + 1))
        own, cost = q.sized(0, 1).sized(HEADS, group * (last - first)), self.clocks.machine
        tile = cost.forward if passes == "forward" else cost.backward
        if passes not in self.alone:
            self.alone[passes] = self._count(passes, me, me, WHOLE)
        return self._advance(passes, tile, own, needs, self.alone[passes], share, (last - first) / pairs)

    def saved_state(self, saved: Any) -> TimedArray | None:
        q, _, residual, _ = saved
        return self._state_of(q, residual.ready) if self.keeps else None

    def map_of(self, kv: Any) -> TimedArray:
        return self._states("forward", kv[0], kv)

    def state_of(self, own: TimedArray) -> TimedArray:
        return own

    def advance_state(self, state: TimedArray, own: TimedArray, shards: int = 1) -> TimedArray:
        return self.clocks.free(state.shape, own.itemsize, state, own)

    def compose(self, later: TimedArray, earlier: TimedArray, shards: int = 1) -> TimedArray:
        return self.clocks.free(later.shape, later.itemsize, later, earlier)

    def state_before(self, maps: TimedArray, me: Any, by: int = 1) -> TimedArray:
        return self.clocks.free(maps.shape[1:], maps.itemsize, maps)

    def apply(self, q: TimedArray, kv: Any, before: TimedArray, *, into: TimedArray) -> TimedArray:
        return into.at(self._chunks("forward", q, (q, before, into), rows=1))

    def transposed_map_of(self, saved: Any, kv: Any) -> TimedArray:
        q, dout, *_ = saved
        return self._states("backward", kv[0], (q, dout), 1 / 3)

    def state_backward(
        self, saved: Any, kv: Any, before: TimedArray, behind: TimedArray, *, into: tuple[TimedArray, Any]
    ) -> tuple[TimedArray, Any]:
        end = self._chunks("backward", saved[0], (*leaves(saved), *leaves(kv), before, behind, *leaves(into)), rows=1)
        return map_leaves(lambda leaf: leaf.at(end), into)

    def _states(self, passes: str, k: TimedArray, inputs: Sequence[TimedArray], share: float = 1.0) -> TimedArray:
        """Sum the chunks of a shard to its states."""
        end = self._chunks(passes, k, inputs, share, whole=1)
        return self._state_of(k, end)

    def _state_of(self, x: TimedArray, ready: np.ndarray) -> TimedArray:
        """A state for every key/value head of an array's requests."""
        return self.clocks.allocate((x.shape[0], self.kv_heads, x.shape[-1], x.shape[-1]), ACCUMULATOR_BYTES, ready)

    def _chunks(
        self,
        passes: str,
        of: TimedArray,
        inputs: Sequence[TimedArray],
        share: float = 1.0,
        *,
        whole: int = 0,
        boundary: int = 0,
        rows: int = 0,
    ) -> np.ndarray:
        """When each device has computed its products for every chunk of a shard, over all rows. A call's cost that
        grows with the rows includes them; a chunk's backward pass has three of each kind."""
        machine = self.clocks.machine
        cost = machine.forward if passes == "forward" else machine.backward
        chunks = [0 if cost.call_grows else -(-self.sharding.rows // tile.block_kv) for tile in self.tiles[passes]]
        count = np.array(chunks)[:, None]
        return self._advance(
            passes, cost, of, list(inputs), TileCount(whole * count, boundary * count, 0 * count, rows * count), share
        )

    def scores(self, q: TimedArray, k: TimedArray, me: Any, src: Any) -> TimedArray:
        rows = (*q.shape[: ROWS + 1], k.shape[ROWS])
        return self._half("forward", q, self.clocks.allocate(rows, ACCUMULATOR_BYTES, k.ready), (q, k), me, src)

    def weights(self, q: TimedArray, scores: Sequence[TimedArray]) -> tuple[list[TimedArray], TimedArray]:
        whole = self.clocks.free(q.sized(ELEMENTS, self.value_dim).shape, ACCUMULATOR_BYTES, *scores)
        return [self.clocks.free(block.shape, block.itemsize, whole, block) for block in scores], whole

    def weigh(self, weights: TimedArray, v: TimedArray, me: Any, src: Any, *, into: TimedArray) -> TimedArray:
        return self._half(VALUES, into, into, (weights, v, into), me, src)

    def maximum(self, state: Any) -> TimedArray:
        return self.clocks.free(state.shape[: ROWS + 1], ACCUMULATOR_BYTES, state)

    def rescale(self, state: Any, maximum: TimedArray) -> tuple[TimedArray, TimedArray]:
        shapes = state.shape, maximum.shape
        out, total = (self.clocks.free(shape, ACCUMULATOR_BYTES, state, maximum) for shape in shapes)
        return out, total

    def from_sum(self, summed: Any, maximum: TimedArray) -> TimedArray:
        return self.clocks.free(summed[0].shape, ACCUMULATOR_BYTES, *summed, maximum)

    def rotate_rows(self, x: Any, parts: int, places: Any) -> Any:
        return map_leaves(lambda leaf: self.clocks.free(leaf.shape, leaf.itemsize, leaf), x)

    def repeat_kv_heads(self, kv: Any, heads: int) -> Any:
        return map_leaves(lambda x: self._with_heads(x, max(heads, x.shape[HEADS])), kv)

    def take_heads(self, x: TimedArray, index: Any, parts: int) -> TimedArray:
        return self._with_heads(x, x.shape[HEADS] // parts)

    def scatter_heads(self, x: TimedArray, index: Any, parts: int) -> TimedArray:
        return self._with_heads(x, x.shape[HEADS] * parts)

    def _with_heads(self, x: TimedArray, heads: int) -> TimedArray:
        if heads == x.shape[HEADS]:
            return x
        return self.clocks.free(x.sized(HEADS, heads).shape, x.itemsize, x)

    def _half(
        self, passes: str, q: TimedArray, like: TimedArray, inputs: tuple[TimedArray, ...], me: Any, src: Any
    ) -> TimedArray:
        """One of the two matmuls of a pair of shards, or two of the four in its backward pass."""
        machine = self.clocks.machine
        out = like.at(self._compute(passes, machine.forward, q, me, src, list(inputs), WHOLE, 0.5))

        def transpose(given: TimedArray, gradients: Gradients) -> None:
            needs, back = [given, *inputs], "backward" if passes == "forward" else VALUES
            end = self._compute(back, machine.backward, q, me, src, needs, WHOLE, 0.5)
            for primal in inputs:
                gradients.add(primal, end)

        self.clocks.record(out, transpose)
        return out

    def _compute(
        self,
        passes: str,
        cost: TileCost,
        q: TimedArray,
        me: Any,
        src: Any,
        needs: list[TimedArray],
        part: Part,
        share: float = 1.0,
        merges: bool = True,
        held: int = 0,
    ) -> np.ndarray:
        """When each device has computed a pair of shards. The call `merges` its result with others or leaves it as the
        library makes it, and holds `held` bytes in addition."""
        tiles, costs = self._count(passes, me, src, part), self.kernel.costs
        if cost.processors:
            tiles = self._in_waves(passes, cost, q, tiles, me, src, part)
        back = "backward" if passes == "backward" else "forward"
        copies, moves = costs.query_copies.get(passes, 0), costs.moved_bytes_per_element.get(passes, 0)
        if merges:
            copies += costs.merged_copies.get(passes, 0)
            moves += costs.merged_bytes_per_element.get(passes, 0)
        if costs.bundles and self.clocks.in_loop:
            copies *= 2  # a TPU's compiler makes the copies of the round after a loop before the loop
        self.clocks.ledger.beside(copies * q.elements * self.itemsize + self.score_bytes[back] + held)
        if moves:
            self.clocks.touch(share * moves * q.elements)
        if passes == "backward" and self.dq_sums.size:
            self._add_partial_sums(q)
        if self.pads:
            self._pad(back, q, part, ACCUMULATOR_BYTES if merges else self.itemsize)
        return self._advance(passes, cost, q, needs, tiles, share)

    def _add_partial_sums(self, q: TimedArray) -> None:
        """The memory and the traffic of a call that adds partial sums of dQ."""
        held, moved = self.dq_sums.T * q.elements * self.itemsize
        self.clocks.ledger.beside(held)
        self.clocks.touch(moved[:, None])

    def _pad(self, passes: str, q: TimedArray, part: Part, result_bytes: int) -> None:
        """The memory and the traffic of a call in the plans that pad its queries, or its keys."""
        piece = self.sharding.key_piece
        rows, share = (part.rows, part.rows / piece) if isinstance(part, Halo) else (piece, 1 / part[1])
        keys = 2 * share * q.elements * self.kv_heads / max(q.shape[HEADS], self.kv_heads)
        held = moved = np.zeros(1)
        for size, elements in ((piece, (q.elements, 0)), (rows, (0, keys))):
            if (padded := self.pads.get((passes, size))) is not None:
                traffic = padding_traffic(passes, *elements, self.itemsize, result_bytes)
                held, moved = held + padded * traffic.held, moved + padded * traffic.moved
        self.clocks.ledger.beside(held)
        self.clocks.touch(moved[:, None])

    def _in_waves(
        self, passes: str, cost: TileCost, q: TimedArray, tiles: TileCount, me: Any, src: Any, part: Part
    ) -> TileCount:
        """The tiles, with the tiles of a GPU's busiest processor."""
        pair = (tuple(np.ravel(each).tolist()) for each in (me, src))
        heads = q.shape[0] * q.shape[HEADS]
        found = busiest_processors(self.sharding, part, *pair, passes == "backward", heads, cost.waves)
        return tiles._replace(busiest=found[0], calls=found[1])

    def _advance(
        self,
        passes: str,
        cost: TileCost,
        q: TimedArray,
        needs: list[TimedArray],
        tiles: TileCount,
        share: float = 1.0,
        part: float = 1.0,
    ) -> np.ndarray:
        """When each device has computed these tiles for all heads of an array, which are a part of a shard's heads."""
        start = np.maximum(self.clocks.now, latest(needs))
        heads = q.shape[0] * q.shape[HEADS]
        seconds = share * cost.seconds(tiles, heads, part)
        end = self.clocks.now = start + seconds
        self.rounds_run.append(KernelCall(passes, start, end, tiles, heads, part, share))
        return end

    def _count(self, passes: str, me: Any, src: Any, part: Part) -> TileCount:
        """Tiles of a round, (plans, devices)."""
        tiles = self.tiles["backward" if passes == "backward" else "forward"]
        return count_round(
            self.kernel.count_tiles, self.sharding, self.starts, tiles, part, np.ravel(me), np.ravel(src)
        )
