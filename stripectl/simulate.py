"""A scheme on clocks: the program that runs on devices, with arrays that hold only a shape and when each device has it.

Devices of the axes that divide heads and batch are all alike. A backward pass is the scheme's own, or the transpose of
what forward did (`clocks`).
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from stripectl.clocks import Clocks, Gradients, Timed, each, leaves
from stripectl.layout import WHOLE, TileCount, count_tiles
from stripectl.machine import Machine, TileCost
from stripectl.overlap import Overlap, overlap, union_s
from stripectl.pairing import among, dealing, lie, pairing_of
from stripectl.plan import Plan
from stripectl.scheme import HEADS, ROWS, Scheme, schemes
from stripectl.workload import DTYPE_BYTES, Workload

ACCUMULATOR_BYTES = 4
VALUES = "values"  # a round that weighs values, whose scores had a round of their own


class Round(NamedTuple):
    """One call of a kernel on every device: when it starts and ends there, its tiles, and of how many heads of how many
    requests together each of them is."""

    passes: str
    start_s: np.ndarray
    end_s: np.ndarray
    tiles: TileCount
    heads: int


class TimedAttend:
    """`attend` on clocks: a call takes what its tiles cost, on every device at once; what moves no tile is free. Of a
    state only the output counts."""

    def __init__(self, workload: Workload, plan: Plan, clocks: Clocks, counted: Sequence[TileCount] = ()) -> None:
        self.clocks, self.pairing, self.tiles = clocks, pairing_of(workload, plan), plan.tiles
        self.rounds_run, self.counted = list[Round](), counted
        self.documents = None if workload.starts is None else among(workload.starts, workload.seq_len)

    def rounds(self, by: int = 1) -> int:
        return self.pairing.rounds(by)

    def empty(self, q: Timed) -> Timed:
        return Timed(q.shape, ACCUMULATOR_BYTES, q.ready.copy())

    def query(self, q: Timed) -> Timed:
        return q

    def __call__(self, q: Timed, kv: Any, me: Any, src: Any, *, into: Timed, part: tuple[int, int] = WHOLE) -> Timed:
        cost, needs = self.clocks.machine.forward, [q, into, *leaves(kv)]
        out = into._replace(ready=self._compute("forward", cost, q, me, src, needs, part))

        def transpose(given: Timed, gradients: Gradients) -> None:
            needs = [given, q, *leaves(kv)]
            end = self._compute("backward", self.clocks.machine.backward, q, me, src, needs, part)
            for primal in (q, *leaves(kv)):
                gradients.add(primal, end)
            gradients.add(into, given.ready)

        self.clocks.record(out, transpose)
        return out

    def backward(
        self, saved: Any, kv: Any, me: Any, src: Any, *, into: Timed, part: tuple[int, int] = WHOLE
    ) -> tuple[Timed, Any]:
        cost, needs = self.clocks.machine.backward, [*leaves(saved), into, *leaves(kv)]
        end = self._compute("backward", cost, saved[0], me, src, needs, part)
        return into._replace(ready=end), each(lambda leaf: Timed(leaf.shape, ACCUMULATOR_BYTES, end), kv)

    def partial(self, q: Timed, state: Timed) -> tuple[Timed, Timed]:
        return self.finish(q, state), self.clocks.free(q.shape[: ROWS + 1], ACCUMULATOR_BYTES, state)

    def finish(self, q: Timed, state: Timed) -> Timed:
        """The output, in the dtype of the queries."""
        return self.clocks.free(q.shape, q.itemsize, state)

    def merge(self, state: Timed, partial: Any) -> Timed:
        return self.clocks.free(state.shape, state.itemsize, state, *leaves(partial))

    def split(self, kv: Any, parts: int) -> list[Any]:
        if parts == 1:
            return [kv]

        def cut(leaf: Timed) -> Timed:
            size = leaf.shape[ROWS] // parts
            return self.clocks.free(leaf.sized(ROWS, size).shape, leaf.itemsize, leaf)

        return [each(cut, kv) for _ in range(parts)]

    def joined(self, parts: Sequence[Any]) -> Any:
        def join(*pieces: Timed) -> Timed:
            rows = sum(piece.shape[ROWS] for piece in pieces)
            return self.clocks.free(pieces[0].sized(ROWS, rows).shape, pieces[0].itemsize, *pieces)

        return each(join, *parts)

    def zeros(self, saved: Any) -> Timed:
        return Timed(saved[0].shape, ACCUMULATOR_BYTES, saved[0].ready.copy())

    def add(self, a: Any, b: Any) -> Any:
        return each(lambda x, y: self.clocks.free(x.shape, x.itemsize, x, y), a, b)

    def scores(self, q: Timed, k: Timed, me: Any, src: Any) -> Timed:
        rows = (*q.shape[: ROWS + 1], k.shape[ROWS])
        return self._half("forward", q, Timed(rows, ACCUMULATOR_BYTES, k.ready), (q, k), me, src)

    def weights(self, q: Timed, scores: Sequence[Timed]) -> tuple[list[Timed], Timed]:
        whole = self.clocks.free(q.shape, ACCUMULATOR_BYTES, *scores)
        return [self.clocks.free(block.shape, block.itemsize, whole, block) for block in scores], whole

    def weigh(self, weights: Timed, v: Timed, me: Any, src: Any, *, into: Timed) -> Timed:
        return self._half(VALUES, into, into, (weights, v, into), me, src)

    def maximum(self, state: Timed) -> Timed:
        return self.clocks.free(state.shape[: ROWS + 1], ACCUMULATOR_BYTES, state)

    def scaled(self, state: Timed, maximum: Timed) -> tuple[Timed, Timed]:
        shapes = state.shape, maximum.shape
        out, total = (self.clocks.free(shape, ACCUMULATOR_BYTES, state, maximum) for shape in shapes)
        return out, total

    def total(self, summed: Any, maximum: Timed) -> Timed:
        return self.clocks.free(summed[0].shape, ACCUMULATOR_BYTES, *summed, maximum)

    def turned(self, x: Any, parts: int, places: Any) -> Any:
        return each(lambda leaf: self.clocks.free(leaf.shape, leaf.itemsize, leaf), x)

    def shared(self, kv: Any, heads: int) -> Any:
        return each(lambda x: self._with_heads(x, max(heads, x.shape[HEADS])), kv)

    def own(self, x: Timed, index: Any, parts: int) -> Timed:
        return self._with_heads(x, x.shape[HEADS] // parts)

    def spread(self, x: Timed, index: Any, parts: int) -> Timed:
        return self._with_heads(x, x.shape[HEADS] * parts)

    def _with_heads(self, x: Timed, heads: int) -> Timed:
        return self.clocks.free(x.sized(HEADS, heads).shape, x.itemsize, x)

    def _half(self, passes: str, q: Timed, like: Timed, inputs: tuple[Timed, ...], me: Any, src: Any) -> Timed:
        """One of the two matmuls of a pair of shards, and two of the four of its backward pass."""
        machine = self.clocks.machine
        out = like._replace(ready=self._compute(passes, machine.forward, q, me, src, list(inputs), WHOLE, 0.5))

        def transpose(given: Timed, gradients: Gradients) -> None:
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
        q: Timed,
        me: Any,
        src: Any,
        needs: list[Timed],
        part: tuple[int, int],
        share: float = 1.0,
    ) -> np.ndarray:
        tiles = self.counted[len(self.rounds_run)] if self.counted else self._count(passes, me, src, part)
        start, heads = (
            np.maximum.reduce([self.clocks.now, *(array.ready for array in needs)]),
            q.shape[0] * q.shape[HEADS],
        )
        end = self.clocks.now = start + share * cost.seconds(tiles, heads)
        self.rounds_run.append(Round(passes, start, end, tiles, heads))
        return end

    def _count(self, passes: str, me: Any, src: Any, part: tuple[int, int]) -> TileCount:
        tile = self.tiles["backward" if passes == "backward" else "forward"]
        counts = count_tiles(self.pairing.bands(me, src, part, self.documents), tile)
        return TileCount(*(np.broadcast_to(kind, self.clocks.grid.size) for kind in counts))


@dataclass(frozen=True)
class Simulation:
    """How a plan went on clocks: when the slowest device ended, every call of the kernel, and what a device sent:
    transfers by (opcode, elements, itemsize), and when each was under way."""

    seconds: float
    rounds: list[Round]
    transfers: Counter[tuple[str, int, int]]
    windows: list[tuple[np.ndarray, np.ndarray]]

    @property
    def sent(self) -> dict[str, int]:
        """Bytes a device sent, by opcode."""
        total: Counter[str] = Counter()
        for (opcode, elements, itemsize), times in self.transfers.items():
            total[opcode] += elements * itemsize * times
        return dict(total)

    @property
    def overlap(self) -> Overlap | None:
        """Of the device that computes longest, the most exposed of those that are alike; None where nothing was sent.
        Devices that wait for it have little to hide behind, which is imbalance and not slow communication."""
        if not self.windows:
            return None
        compute = [np.stack([each.start_s, each.end_s], 1) for each in self.rounds]
        windows = [np.stack(window, 1) for window in self.windows]
        each = [(union_s([c[d] for c in compute]), [w[d] for w in windows], d) for d in range(len(compute[0]))]
        longest = max(busy for busy, _, _ in each)
        found = [overlap([c[d] for c in compute], sent) for busy, sent, d in each if busy > 0.999 * longest]
        return max(found, key=lambda one: one.exposed_s)


def simulate(workload: Workload, plan: Plan, machine: Machine, counted: Sequence[TileCount] = ()) -> Simulation:
    """Run the plan's scheme on clocks. The plan has its tile and is not refused. `counted` are the tiles of every round
    where the same workload and plan ran before, on whatever machine: counting them is what takes time."""
    scheme: Scheme = schemes[plan.scheme]
    clocks = Clocks(plan, scheme.axes, machine)
    attend = TimedAttend(workload, plan, clocks, counted)
    at_rest = inputs(workload, plan, clocks)
    q, kv = scheme.enter(at_rest, attend, clocks)
    entry = clocks.recorded()
    out = attend.finish(q, scheme.forward(q, kv, attend, clocks))
    meeting = clocks.recorded()
    result = scheme.leave(out, attend, clocks)
    ready = result.ready
    if workload.passes != "forward":
        leaving, gradients = clocks.recorded(), Gradients()
        clocks.passes = "backward"
        gradients.add(result, np.maximum(ready, clocks.now))
        clocks.transpose(leaving, gradients)
        if scheme.backward is None:
            clocks.transpose(meeting, gradients)
        else:
            arrived = gradients.take(out)
            assert arrived
            row = Timed(q.shape[: ROWS + 1], ACCUMULATOR_BYTES, arrived.ready)
            saved = q._replace(ready=arrived.ready), arrived, row, row._replace()
            found = leaves(scheme.backward(saved, kv, attend, clocks))
            for primal, gradient in zip((q, *leaves(kv)), found, strict=True):
                gradients.add(primal, gradient.ready)
        clocks.transpose(entry, gradients)
        ends = [gradient.ready for primal in leaves(at_rest) if (gradient := gradients.take(primal))]
        ready = np.maximum.reduce([ready, *ends])
    end = float(np.maximum(ready, clocks.now).max())
    return Simulation(end, attend.rounds_run, clocks.transfers, clocks.windows)


def inputs(workload: Workload, plan: Plan, clocks: Clocks) -> tuple[Timed, tuple[Timed, Timed]]:
    """(queries, (keys, values)) as they lie on a device before anything moves."""

    def shard(over: tuple[Sequence[str], ...], heads: int, rows: int) -> Timed:
        sizes = (size // plan.product(axes) for size, axes in zip((workload.batch, heads, rows), over, strict=True))
        return Timed((*sizes, workload.head_dim), DTYPE_BYTES[workload.dtype], np.zeros(clocks.grid.size))

    keys = [shard(lie(plan, "keys"), workload.kv_heads, workload.seq_len) for _ in range(2)]
    return shard(lie(plan, dealing(workload, plan)), workload.heads, workload.queries), (keys[0], keys[1])
