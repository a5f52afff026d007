"""A scheme on clocks: the program that runs on devices, with arrays that hold only a shape and when each device has it.

Every device has a clock of its own (its compute is in program order) and every link one per direction. A transfer
starts when sender and receiver have both come to it, the data is there and the link is free; where collectives do not
run beside compute (a CPU), it also holds both. Other mesh axes divide heads and batch; their devices are all alike.

A backward pass is the scheme's own, or the transpose of what forward did: each operation leaves behind what its
transpose does on the same clocks, as JAX does it.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from stripectl.layout import Layout, TileCount, count_tiles, layouts
from stripectl.machine import Machine
from stripectl.overlap import Overlap, overlap, union_s
from stripectl.plan import BATCH_AXES, HEAD_AXES, Plan
from stripectl.scheme import Scheme, schemes
from stripectl.workload import DTYPE_BYTES, Workload

ACCUMULATOR_BYTES = 4


class Timed(NamedTuple):
    """An array on clocks: its shape on one device, bytes an element, and when each device has it."""

    shape: tuple[int, ...]
    itemsize: int
    ready: np.ndarray

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.itemsize


class Round(NamedTuple):
    """One call of a kernel on every device: when it starts and ends there, and its tiles."""

    passes: str
    start_s: np.ndarray
    end_s: np.ndarray
    tiles: TileCount


def each(function: Callable[..., Timed], *trees: Any) -> Any:
    """`function` over the leaves of equal nests of tuples."""
    if isinstance(trees[0], Timed):
        return function(*trees)
    return tuple(each(function, *branches) for branches in zip(*trees, strict=True))


def leaves(tree: Any) -> list[Timed]:
    return [tree] if isinstance(tree, Timed) else [leaf for branch in tree for leaf in leaves(branch)]


class Gradients:
    """When the cotangent of each array is ready. The arrays stay referenced, so an id names one array."""

    def __init__(self) -> None:
        self._ready: dict[int, tuple[Timed, np.ndarray]] = {}

    def add(self, primal: Timed, ready: np.ndarray) -> None:
        known = self._ready.get(id(primal))
        self._ready[id(primal)] = (primal, ready if known is None else np.maximum(known[1], ready))

    def take(self, primal: Timed) -> Timed | None:
        known = self._ready.pop(id(primal), None)
        return None if known is None else primal._replace(ready=known[1])


class Clocks:
    """`comm` on clocks: every device's time and every link's, the transfers (opcode, elements, itemsize) that each
    device has sent, and when each of them was under way to a device."""

    def __init__(self, plan: Plan, axes: tuple[str, ...], machine: Machine) -> None:
        self.plan, self.machine = plan, machine
        self.grid = np.arange(math.prod(plan.size(axis) for axis in axes)).reshape([plan.size(axis) for axis in axes])
        self.axes = axes
        self.passes = "forward"
        self.now = np.zeros(self.grid.size)
        self.transfers: Counter[tuple[str, int, int]] = Counter()
        self.windows: list[tuple[np.ndarray, np.ndarray]] = []
        self.tape: list[Callable[[Gradients], None]] = []
        self._alike: Counter[tuple[str, str, int]] = Counter()
        self._links: dict[tuple[str, int], np.ndarray] = {}

    def size(self, axis: str) -> int:
        return self.plan.size(axis)

    def index(self, axis: str) -> np.ndarray:
        return np.indices(self.grid.shape)[self.axes.index(axis)].reshape(-1)

    def shift(self, x: Any, axis: str, what: str = "") -> Any:
        if self.size(axis) == 1:
            return x
        return each(lambda leaf: self._shift(leaf, axis), x)

    def all_gather(self, x: Any, axis: str, what: str = "") -> Any:
        size = self.size(axis)

        def gather(leaf: Timed) -> Timed:
            ready = self._collect("all-gather", leaf, leaf.ready, axis) if size > 1 else leaf.ready
            out = Timed((size, *leaf.shape), leaf.itemsize, ready)

            def transpose(gradients: Gradients) -> None:
                if given := gradients.take(out):
                    ready = self._collect("reduce-scatter", leaf, given.ready, axis) if size > 1 else given.ready
                    gradients.add(leaf, ready)

            self.tape.append(transpose)
            return out

        return each(gather, x)

    def select(self, stacked: Any, index: Any) -> Any:
        def pick(leaf: Timed) -> Timed:
            out = Timed(leaf.shape[1:], leaf.itemsize, leaf.ready.copy())
            self.tape.append(lambda gradients: (given := gradients.take(out)) and gradients.add(leaf, given.ready))
            return out

        return each(pick, stacked)

    def loop(self, first: int, last: int, body: Callable[[int, Any], Any], state: Any) -> Any:
        for index in range(first, last):
            state = body(index, state)
        return state

    def transpose(self, gradients: Gradients) -> None:
        """Undo what was recorded, last first; what a transpose does itself is not recorded again."""
        tape, self.tape = self.tape, []
        for operation in reversed(tape):
            operation(gradients)
        self.tape = []

    def _shift(self, leaf: Timed, axis: str) -> Timed:
        out = leaf._replace(ready=self._hop(leaf, axis, 1))

        def transpose(gradients: Gradients) -> None:
            if given := gradients.take(out):
                gradients.add(leaf, self._hop(given, axis, -1))

        self.tape.append(transpose)
        return out

    def _hop(self, leaf: Timed, axis: str, by: int) -> np.ndarray:
        """When each device has what its neighbour sent."""
        source = np.roll(self.grid, by, self.axes.index(axis)).reshape(-1)
        free = self._links.setdefault((axis, by), np.zeros(self.grid.size))
        issued = np.maximum(np.maximum(self.now, leaf.ready)[source], self.now)
        per_s, latency_s = (each[self.index(axis)][source] for each in self.machine.hop(axis, self.size(axis), by))
        start = np.maximum(issued, free[source])
        free[source] = sent = start + leaf.nbytes / per_s
        arrived = sent + latency_s
        if not self._hides("collective-permute", leaf, 1, start, arrived):
            self.now = np.maximum(self.now, arrived)
            self.now[source] = np.maximum(self.now[source], sent)
        return arrived

    def _collect(self, name: str, block: Timed, ready: np.ndarray, axis: str) -> np.ndarray:
        """When a ring all-gather or reduce-scatter of such blocks ends on each device: all start together, when the
        last of them and its link is ready, and the slowest hop sets the pace of all but the shortest."""
        hops, line = self.size(axis) - 1, self.axes.index(axis)
        free = self._links.setdefault((axis, 1), np.zeros(self.grid.size))
        ready = np.maximum.reduce([ready, self.now, free]).reshape(self.grid.shape)
        start = np.broadcast_to(ready.max(line, keepdims=True), self.grid.shape).reshape(-1)
        per_s, latency_s = self.machine.hop(axis, self.size(axis), 1)
        free[:] = start + hops * block.nbytes / per_s.min()
        end = free + latency_s.sum() - latency_s.min()
        if not self._hides(name, block, hops, start, end):
            self.now = np.maximum(self.now, end)
        return end

    def _hides(self, opcode: str, block: Timed, blocks: int, start: np.ndarray, end: np.ndarray) -> bool:
        """Take down a transfer of so many blocks; whether compute runs beside it."""
        self.transfers[opcode, blocks * math.prod(block.shape), block.itemsize] += 1
        self.windows.append((start, end))
        alike = self.passes, opcode, block.itemsize
        self._alike[alike] += 1
        return self.machine.hides(*alike, self._alike[alike])


class TimedAttend:
    """`attend` on clocks: a call takes what its tiles cost, on every device at once."""

    def __init__(
        self, workload: Workload, plan: Plan, layout: Layout, clocks: Clocks, counted: Sequence[TileCount] = ()
    ) -> None:
        self.clocks, self.layout, self.window = clocks, layout, workload.window
        self.shards, self.tiles, self.rounds, self.counted = plan.shards, plan.tiles, list[Round](), counted

    def empty(self, q: Timed) -> Timed:
        return Timed(q.shape, ACCUMULATOR_BYTES, q.ready.copy())

    def query(self, q: Timed) -> Timed:
        return q

    def __call__(self, q: Timed, kv: Any, me: Any, src: Any, *, into: Timed) -> Timed:
        out = into._replace(ready=self._compute("forward", q, me, src, [q, into, *leaves(kv)]))

        def transpose(gradients: Gradients) -> None:
            if given := gradients.take(out):
                end = self._compute("backward", q, me, src, [given, q, *leaves(kv)])
                for primal in (q, *leaves(kv)):
                    gradients.add(primal, end)
                gradients.add(into, given.ready)

        self.clocks.tape.append(transpose)
        return out

    def backward(self, saved: Timed, kv: Any, me: Any, src: Any, *, into: Timed) -> tuple[Timed, Any]:
        end = self._compute("backward", saved, me, src, [saved, into, *leaves(kv)])
        return into._replace(ready=end), each(lambda leaf: Timed(leaf.shape, ACCUMULATOR_BYTES, end), kv)

    def zeros(self, saved: Timed) -> Timed:
        return Timed(saved.shape, ACCUMULATOR_BYTES, saved.ready)

    def add(self, a: Any, b: Any) -> Any:
        return each(lambda x, y: x._replace(ready=np.maximum(x.ready, y.ready)), a, b)

    def _compute(self, passes: str, q: Timed, me: Any, src: Any, needs: list[Timed]) -> np.ndarray:
        tiles = self.counted[len(self.rounds)] if self.counted else self._count(passes, q.shape[2], me, src)
        cost = self.clocks.machine.forward if passes == "forward" else self.clocks.machine.backward
        start = np.maximum.reduce([self.clocks.now, *(array.ready for array in needs)])
        end = self.clocks.now = start + cost.seconds(tiles, q.shape[0] * q.shape[1])
        self.rounds.append(Round(passes, start, end, tiles))
        return end

    def _count(self, passes: str, rows: int, me: Any, src: Any) -> TileCount:
        counts = count_tiles(self.layout.bands(me, src, self.shards, rows, self.window), self.tiles[passes])
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
    attend = TimedAttend(workload, plan, layouts[plan.layout], clocks, counted)
    batch, tensor = plan.product(BATCH_AXES), plan.product(HEAD_AXES)

    def shard(heads: int) -> Timed:
        shape = (workload.batch // batch, heads // tensor, workload.seq_len // plan.shards, workload.head_dim)
        return Timed(shape, DTYPE_BYTES[workload.dtype], np.zeros(clocks.grid.size))

    q, kv = shard(workload.heads), (shard(workload.kv_heads), shard(workload.kv_heads))
    state = scheme.forward(q, kv, attend, clocks)
    ready = state.ready
    if workload.passes != "forward":
        clocks.passes = "backward"
        if scheme.backward is None:
            (gradients := Gradients()).add(state, np.maximum(state.ready, clocks.now))
            clocks.transpose(gradients)
            ends = [gradient.ready for primal in (q, *kv) if (gradient := gradients.take(primal))]
        else:
            saved = q._replace(ready=np.maximum(state.ready, clocks.now))
            ends = [leaf.ready for leaf in leaves(scheme.backward(saved, kv, attend, clocks))]
        ready = np.maximum.reduce([ready, *ends])
    return Simulation(float(np.maximum(ready, clocks.now).max()), attend.rounds, clocks.transfers, clocks.windows)
