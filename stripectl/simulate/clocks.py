"""`comm` on clocks: arrays that hold only a shape and when each device has it.

Every device has a clock of its own (its compute is in program order) and every link one per direction. A transfer
starts when sender and receiver have both come to it, the data is there and the link is free; where collectives do not
run beside compute (a CPU), it also holds both. Each operation leaves behind what its transpose does on the same clocks,
as JAX does it.

An axis is charged as a ring of its hops: on a torus a transfer between devices that are not neighbours takes the links
between, the shorter way, and shares them with those of the others; a switch joins any two. What all devices do together
may go both ways round a torus, and between nodes through the network of all their devices (`Machine`).
"""

import math
from collections import Counter
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np

from stripectl.machine import Machine
from stripectl.plan import Plan


class Timed(NamedTuple):
    """An array on clocks: its shape on one device, bytes an element, and when each device has it."""

    shape: tuple[int, ...]
    itemsize: int
    ready: np.ndarray

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.elements * self.itemsize

    def sized(self, dimension: int, size: int) -> "Timed":
        """As it is, but of another size in a dimension."""
        return self._replace(shape=(*self.shape[:dimension], size, *self.shape[dimension + 1 :]))


def each(function: Callable[..., Any], *trees: Any) -> Any:
    """`function` over the leaves of equal nests of tuples."""
    if isinstance(trees[0], Timed) or not isinstance(trees[0], tuple):
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


Tape = list[Callable[[Gradients], None]]


class Clocks:
    """Every device's time and every link's, the transfers (opcode, elements, itemsize) that each device has sent, bytes
    of them by (axis, opcode), and when each of them was under way to a device."""

    def __init__(self, plan: Plan, axes: tuple[str, ...], machine: Machine) -> None:
        self.plan, self.machine, self.parts = plan, machine, plan.parts
        self.grid = np.arange(math.prod(plan.size(axis) for axis in axes)).reshape([plan.size(axis) for axis in axes])
        self.axes = axes
        self.passes = "forward"
        self.now = np.zeros(self.grid.size)
        self.transfers: Counter[tuple[str, int, int]] = Counter()
        self.along: Counter[tuple[str, str]] = Counter()
        self.windows: list[tuple[np.ndarray, np.ndarray]] = []
        self.touched: list[tuple[np.ndarray, np.ndarray]] = []  # when memory was read and written beside tiles
        self.tape: Tape = []
        self._alike: Counter[tuple[str, str, int]] = Counter()
        self._links: dict[tuple[str, int], np.ndarray] = {}

    def size(self, axis: str) -> int:
        return self.plan.size(axis)

    def index(self, axis: str) -> np.ndarray:
        return np.indices(self.grid.shape)[self.axes.index(axis)].reshape(-1)

    def shift(
        self, x: Any, axis: str, what: str = "", by: int = 1, senders: Callable[[int], bool] | None = None
    ) -> Any:
        by %= self.size(axis)
        sends = np.array([senders is None or senders(i) for i in range(self.size(axis))])
        if by == 0:
            return x

        def move(leaf: Timed) -> Timed:
            out = leaf._replace(ready=self._hop(leaf, axis, by, sends))
            back = np.roll(sends, by)
            self.record(out, lambda given, gradients: gradients.add(leaf, self._hop(given, axis, -by, back)))
            return out

        return each(move, x)

    def all_gather(self, x: Any, axis: str, what: str = "", join: int | None = None) -> Any:
        size = self.size(axis)
        if size == 1 and join is not None:
            return x

        def gather(leaf: Timed) -> Timed:
            shape = (size, *leaf.shape) if join is None else leaf.sized(join, leaf.shape[join] * size).shape
            out = leaf._replace(shape=shape, ready=self._gather("all-gather", leaf, leaf.ready, axis))

            def transpose(given: Timed, gradients: Gradients) -> None:
                gradients.add(leaf, self._gather("reduce-scatter", leaf, given.ready, axis))

            self.record(out, transpose)
            return out

        return each(gather, x)

    def reduce_scatter(self, x: Any, axis: str, what: str = "", *, split: int) -> Any:
        if (size := self.size(axis)) == 1:
            return x

        def scatter(leaf: Timed) -> Timed:
            own = leaf.sized(split, leaf.shape[split] // size)
            out = own._replace(ready=self._gather("reduce-scatter", own, leaf.ready, axis))

            def transpose(given: Timed, gradients: Gradients) -> None:
                gradients.add(leaf, self._gather("all-gather", own, given.ready, axis))

            self.record(out, transpose)
            return out

        return each(scatter, x)

    def all_to_all(self, x: Any, axis: str, what: str = "", *, split: int, join: int) -> Any:
        if (size := self.size(axis)) == 1:
            return x

        def pack(leaf: Timed) -> Timed:
            """Parts are brought together in memory before they are sent, and apart after."""
            return leaf._replace(ready=self.touch(2 * leaf.nbytes, leaf))

        def back(given: Timed) -> np.ndarray:
            packed = given._replace(ready=self.touch(4 * given.nbytes, given))
            return self._exchange(packed, axis)

        def unpack(leaf: Timed, arrived: Timed) -> Timed:
            moved = leaf.sized(split, leaf.shape[split] // size)
            ready = self.touch(2 * leaf.nbytes, arrived)
            out = moved.sized(join, leaf.shape[join] * size)._replace(ready=ready)
            self.record(out, lambda given, gradients: gradients.add(leaf, back(given)))
            return out

        packed = each(pack, x)
        arrived = each(lambda leaf: leaf._replace(ready=self._exchange(leaf, axis)), packed)
        return each(unpack, x, arrived)

    def reduce(self, x: Any, axis: str, what: str = "", *, by: Literal["sum", "max"]) -> Any:
        if self.size(axis) == 1:
            return x

        def total(leaf: Timed) -> Timed:
            out = leaf._replace(ready=self._reduce(leaf, axis))
            self.record(out, lambda given, gradients: gradients.add(leaf, self._reduce(given, axis)))
            return out

        return each(total, x)

    def select(self, stacked: Any, index: Any) -> Any:
        """A copy of one of the blocks."""
        return each(lambda leaf: self.moved(leaf.shape[1:], leaf.itemsize, leaf, times=2), stacked)

    def where(self, condition: Any, x: Any, y: Any) -> Any:
        def choose(a: Any, b: Any) -> Any:
            if not isinstance(a, Timed):
                return np.where(condition, a, b)
            out = a._replace(ready=np.where(condition, a.ready, b.ready))
            self.record(out, lambda given, gradients: [gradients.add(leaf, given.ready) for leaf in (a, b)])
            return out

        return each(choose, x, y)

    def loop(self, first: int, last: int, body: Callable[[int, Any], Any], state: Any) -> Any:
        """A rolled loop copies what hops bring to where the next turn reads it."""
        for index in range(first, last):
            before = self._brought
            state = body(index, state)
            if self.plan.unroll == 1:
                self.touch(2 * (self._brought - before))
        return state

    @property
    def _brought(self) -> int:
        """Bytes that hops have brought to a device."""
        return sum(nbytes for (_, opcode), nbytes in self.along.items() if opcode == "collective-permute")

    def touch(self, nbytes: float, *inputs: Timed) -> np.ndarray:
        """When so many bytes have been read and written in memory, which nothing is computed beside."""
        start = np.maximum.reduce([self.now, *(each.ready for each in inputs)])
        self.now = start + nbytes / self.machine.memory_bytes_per_s
        if nbytes and math.isfinite(self.machine.memory_bytes_per_s):
            self.touched.append((start, self.now))
        return self.now

    def moved(self, shape: tuple[int, ...], itemsize: int, *inputs: Timed, times: float) -> Timed:
        """What takes the time to read or write it so many times, and its transpose too."""
        out = Timed(shape, itemsize, np.zeros(1))
        out = out._replace(ready=self.touch(times * out.nbytes, *inputs))

        def transpose(given: Timed, gradients: Gradients) -> None:
            end = self.touch(times * out.nbytes, given)
            for leaf in inputs:
                gradients.add(leaf, end)

        self.record(out, transpose)
        return out

    def free(self, shape: tuple[int, ...], itemsize: int, *inputs: Timed) -> Timed:
        """What takes no time: there when all that it is made of is."""
        out = Timed(shape, itemsize, np.maximum.reduce([each.ready for each in inputs]))
        self.record(out, lambda given, gradients: [gradients.add(leaf, given.ready) for leaf in inputs])
        return out

    def record(self, out: Timed, transpose: Callable[[Timed, Gradients], Any]) -> None:
        """Take down what the transpose of an operation does, given the cotangent of its result."""

        def operation(gradients: Gradients) -> None:
            if given := gradients.take(out):
                transpose(given, gradients)

        self.tape.append(operation)

    def recorded(self) -> Tape:
        """What was taken down; the tape is empty then."""
        tape, self.tape = self.tape, []
        return tape

    def transpose(self, tape: Tape, gradients: Gradients) -> None:
        """Undo what a tape holds, last first; what a transpose does itself is not recorded again."""
        for operation in reversed(tape):
            operation(gradients)
        self.tape = []

    def _path(self, axis: str, by: int, source: np.ndarray) -> tuple[int, np.ndarray, np.ndarray]:
        """(direction, bytes/s, latency in seconds) of the way that many places on from each source."""
        size, at = self.size(axis), self.index(axis)[source]
        places, step = (by, 1) if 2 * by <= size else (size - by, -1)
        rates, latencies = self.machine.hop(axis, size, step)
        way = (at + step * np.arange(places)[:, None]) % size
        if self.machine.torus:
            return step, rates[way].min(0) / places, latencies[way].sum(0)
        return step, rates[way].min(0), latencies[way].max(0)

    def _hop(self, leaf: Timed, axis: str, by: int, sends: np.ndarray) -> np.ndarray:
        """When each device has what was sent to it from `by` places back."""
        by %= self.size(axis)
        source = np.roll(self.grid, by, self.axes.index(axis)).reshape(-1)
        step, per_s, latency_s = self._path(axis, by, source)
        free = self._links.setdefault((axis, step), np.zeros(self.grid.size))
        issued = np.maximum(np.maximum(self.now, leaf.ready)[source], self.now)
        start = np.maximum(issued, free[source])
        sent = start + leaf.nbytes / per_s
        comes = sends[self.index(axis)[source]]
        free[source] = np.where(comes, sent, free[source])
        start, arrived = (np.where(comes, when, self.now) for when in (start, sent + latency_s))
        if not self._hides("collective-permute", axis, leaf, 1, start, arrived):
            self.now = np.maximum(self.now, arrived)
            self.now[source] = np.maximum(self.now[source], np.where(comes, sent, 0))
        return arrived

    def _gather(self, opcode: str, block: Timed, ready: np.ndarray, axis: str) -> np.ndarray:
        """When a ring all-gather or reduce-scatter of such blocks ends, which may go both ways round."""
        hops = self.size(axis) - 1
        if hops == 0:
            return ready
        _, latency_s = self.machine.hop(axis, self.size(axis), 1)
        per_s, ways = self.machine.gathered_per_s({axis: self.size(axis)}), self.machine.ways(axis, self.size(axis))
        far_s = latency_s.sum() - latency_s.min() if ways == 1 else math.ceil(hops / ways) * latency_s.max()
        return self._together(opcode, block, hops, ready, axis, hops * block.nbytes / per_s, far_s, ways)

    def _exchange(self, leaf: Timed, axis: str) -> np.ndarray:
        """When an all-to-all ends: on a torus every part goes round its ring the shorter way; elsewhere what stays in a
        node and what leaves it go side by side."""
        size, block = self.size(axis), leaf._replace(shape=(math.prod(leaf.shape) // self.size(axis),))
        per_s, latency_s = self.machine.hop(axis, size, 1)
        far = [min(places, size - places) for places in range(1, size)]
        latency = latency_s.max() * (max(far) if self.machine.torus else 1)
        near, spread = self.machine.near(axis, size), self.machine.spread({axis: size})
        within_s = sum(far) / min(2, size - 1) / per_s.min() if self.machine.torus else (near - 1) / per_s.max()
        if spread:
            within_s = size * spread.load / self.machine.link_bytes_per_s_one_way
        busy_s = block.nbytes * max(within_s, (size - near) / per_s.min())
        return self._together("all-to-all", block, size - 1, leaf.ready, axis, busy_s, latency, 2)

    def _reduce(self, leaf: Timed, axis: str) -> np.ndarray:
        """When an all-reduce ends: by a ring of parts (2 (N-1) hops), or by exchanges of the whole with devices 1, 2, 4
        ... places away, whichever is faster. Bytes are the ring's, as everywhere: the program does not say which."""
        size = self.size(axis)
        rates, latencies = self.machine.hop(axis, size, 1)
        rate, latency, ways = rates.min(), latencies.max(), self.machine.ways(axis, size)
        gathered = self.machine.gathered_per_s({axis: size})
        ring = 2 * ((size - 1) * leaf.nbytes / size / gathered + math.ceil((size - 1) / ways) * latency)
        far = [min(2**k, size - 2**k) if self.machine.torus else 1 for k in range((size - 1).bit_length())]
        whole = sum(places * (leaf.nbytes / rate + latency) for places in far)
        block = leaf._replace(shape=(math.prod(leaf.shape) * 2 * (size - 1) // size,))
        return self._together("all-reduce", block, 1, leaf.ready, axis, min(ring, whole), 0.0, ways)

    def _together(
        self,
        opcode: str,
        block: Timed,
        blocks: int,
        ready: np.ndarray,
        axis: str,
        busy_s: float,
        latency_s: float,
        ways: int,
    ) -> np.ndarray:
        """When a collective ends on each device: all of an axis start when the last of them and its links, of one
        direction or both, are ready."""
        line = self.axes.index(axis)
        links = [self._links.setdefault((axis, by), np.zeros(self.grid.size)) for by in (1, -1)[:ways]]
        ready = np.maximum.reduce([ready, self.now, *links]).reshape(self.grid.shape)
        start = np.broadcast_to(ready.max(line, keepdims=True), self.grid.shape).reshape(-1)
        for free in links:
            free[:] = start + busy_s
        end = start + busy_s + latency_s + self.machine.collective_latency_s
        if not self._hides(opcode, axis, block, blocks, start, end):
            self.now = np.maximum(self.now, end)
        return end

    def _hides(self, opcode: str, axis: str, block: Timed, blocks: int, start: np.ndarray, end: np.ndarray) -> bool:
        """Take down a transfer of so many blocks; whether compute runs beside it."""
        self.along[axis, opcode] += blocks * block.nbytes
        self.transfers[opcode, blocks * math.prod(block.shape), block.itemsize] += 1
        self.windows.append((start, end))
        alike = self.passes, opcode, block.itemsize
        self._alike[alike] += 1
        return self.machine.hides(*alike, self._alike[alike])
