"""Simulated `comm`: arrays hold only a shape, the time at which each device has them, and their memory.

Every link has a clock per direction. A transfer starts when sender and receiver have reached it, the data is ready and
the link is free; where collectives do not run during compute (on a CPU), it also occupies both devices. Each operation
records its transpose, which runs on the same clocks, as in JAX.

An axis costs as much as a ring of its hops: on a torus a transfer between devices that are not neighbours takes the
links between them, in the shorter direction, and shares them with other transfers; a switch joins any two devices.
Collectives may use both directions of a torus, and between nodes the network of all their devices (`CostModel`).
"""

import math
from collections import Counter
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np

from stripectl.core.plan import Plan
from stripectl.costs.cost_model import CostModel
from stripectl.simulate.clocks import DeviceClocks, Gradients
from stripectl.simulate.collective_times import CollectiveTime, all_reduce_time, all_to_all_time, gather_time
from stripectl.simulate.memory import Allocation, TimedArray, map_leaves


class Path(NamedTuple):
    """How shifted data reaches each device: its source, its direction, its cost, and whether it leaves a node."""

    source: np.ndarray
    step: int
    seconds_a_byte: np.ndarray
    latency_s: np.ndarray
    network: np.ndarray


class SimulatedComm(DeviceClocks):
    """The clocks of all devices and links; the transfers (opcode, elements, itemsize) that each device has sent; their
    bytes by (axis, opcode); and the intervals in which each transfer was on its way to a device."""

    def __init__(self, plan: Plan, axes: tuple[str, ...], machine: CostModel, arguments: bool = True) -> None:
        self.grid = np.arange(math.prod(plan.size(axis) for axis in axes)).reshape([plan.size(axis) for axis in axes])
        super().__init__(machine, self.grid.size, arguments)
        self.plan, self.parts, self.axes = plan, plan.parts, axes
        self.passes = "forward"
        self.turns = 0  # iterations of the longest loop
        self.keeps, self.kept = False, list[Any]()  # for a backward pass of the scheme's own
        self.received_bytes = 0  # bytes that hops have brought to a device
        self.transfers: Counter[tuple[str, int, int]] = Counter()
        self.along: Counter[tuple[str, str]] = Counter()
        self.windows: list[tuple[np.ndarray, np.ndarray]] = []
        self._alike: Counter[tuple[str, str, int]] = Counter()
        self._links: dict[tuple[str, int], np.ndarray] = {}
        self._paths: dict[tuple[str, int], Path] = {}

    def size(self, axis: str) -> int:
        if axis not in self.axes:  # a plan has one device on every axis that it does not name
            known = f"its axes are {', '.join(self.axes)}" if self.axes else "it has no axes"
            raise ValueError(f"the scheme has no axis {axis!r}; {known}")
        return self.plan.size(axis)

    def index(self, axis: str) -> np.ndarray:
        self.size(axis)
        return np.indices(self.grid.shape)[self.axes.index(axis)].reshape(-1)

    def shift(
        self, x: Any, axis: str, what: str = "", by: int = 1, senders: Callable[[int], bool] | None = None
    ) -> Any:
        by %= self.size(axis)
        sends = np.array([senders is None or senders(i) for i in range(self.size(axis))])
        if by == 0:
            return x

        def move(leaf: TimedArray) -> TimedArray:
            out, primal = self.allocate(leaf.shape, leaf.itemsize, self._hop(leaf, axis, by, sends)), leaf.bare
            back = np.roll(sends, by)
            self.record(out, lambda given, gradients: gradients.add(primal, self._hop(given, axis, -by, back)))
            return out

        return map_leaves(move, x)

    def all_gather(self, x: Any, axis: str, what: str = "", join: int | None = None) -> Any:
        size = self.size(axis)
        if size == 1 and join is not None:
            return x

        def gather(leaf: TimedArray) -> TimedArray:
            shape = (size, *leaf.shape) if join is None else leaf.sized(join, leaf.shape[join] * size).shape
            out = self.allocate(shape, leaf.itemsize, self._gather("all-gather", leaf, leaf.ready, axis))
            primal = leaf.bare

            def transpose(given: TimedArray, gradients: Gradients) -> None:
                gradients.add(primal, self._gather("reduce-scatter", primal, given.ready, axis))

            self.record(out, transpose)
            return out

        return map_leaves(gather, x)

    def reduce_scatter(self, x: Any, axis: str, what: str = "", split: int | None = None) -> Any:
        if (size := self.size(axis)) == 1 and split is not None:
            return x

        def scatter(leaf: TimedArray) -> TimedArray:
            shape = leaf.shape[1:] if split is None else leaf.sized(split, leaf.shape[split] // size).shape
            own, primal = TimedArray(shape, leaf.itemsize, leaf.ready), leaf.bare
            self.ledger.beside(leaf.nbytes)  # TPUs up to v6e sum the whole array, then each takes its part
            out = self.allocate(own.shape, own.itemsize, self._gather("reduce-scatter", own, leaf.ready, axis))

            def transpose(given: TimedArray, gradients: Gradients) -> None:
                gradients.add(primal, self._gather("all-gather", own, given.ready, axis))

            self.record(out, transpose)
            return out

        return map_leaves(scatter, x)

    def all_to_all(self, x: Any, axis: str, what: str = "", *, split: int, join: int) -> Any:
        if (size := self.size(axis)) == 1:
            return x

        def pack(leaf: TimedArray) -> TimedArray:
            """Parts are joined in memory before they are sent, and split afterwards."""
            return self.allocate(leaf.shape, leaf.itemsize, self.touch(2 * leaf.nbytes, leaf))

        def exchange(leaf: TimedArray) -> TimedArray:
            return self.allocate(leaf.shape, leaf.itemsize, self._exchange(leaf, axis))

        def back(given: TimedArray) -> np.ndarray:
            return self._exchange(given.at(self.touch(4 * given.nbytes, given)), axis)

        def unpack(leaf: TimedArray, arrived: TimedArray) -> TimedArray:
            shape = leaf.sized(split, leaf.shape[split] // size).sized(join, leaf.shape[join] * size).shape
            out, primal = arrived.shaped(shape, self.touch(2 * leaf.nbytes, arrived)), leaf.bare
            self.record(out, lambda given, gradients: gradients.add(primal, back(given)))
            return out

        arrived = map_leaves(exchange, map_leaves(pack, x))
        return map_leaves(unpack, x, arrived)

    def reduce(self, x: Any, axis: str, what: str = "", *, by: Literal["sum", "max"]) -> Any:
        if self.size(axis) == 1:
            return x

        def total(leaf: TimedArray) -> TimedArray:
            out, primal = self.allocate(leaf.shape, leaf.itemsize, self._reduce(leaf, axis)), leaf.bare
            self.record(out, lambda given, gradients: gradients.add(primal, self._reduce(given, axis)))
            return out

        return map_leaves(total, x)

    def select(self, stacked: Any, index: Any) -> Any:
        """A copy of a block; a stack of one block is this block."""

        def block(leaf: TimedArray) -> TimedArray:
            alone = leaf.shape[0] == 1
            return self.moved(leaf.shape[1:], leaf.itemsize, leaf, times=0 if alone else 2, in_place=alone)

        return map_leaves(block, stacked)

    def replace(self, stacked: Any, index: Any, block: Any) -> Any:
        """The block is copied to the stack's memory. Only backward passes replace, so there is no transpose."""
        assert not self.recording

        def put(leaf: TimedArray, own: TimedArray) -> TimedArray:
            copied = own.nbytes + own.elements * leaf.itemsize
            return leaf.at(self.touch(0 if leaf.shape[0] == 1 else copied, leaf, own))

        return map_leaves(put, stacked, block)

    def keep(self, x: Any) -> None:
        if self.keeps:
            self.kept.append(x)

    def take_kept(self) -> tuple[Any, ...]:
        """All that was kept, which the caller holds from now on."""
        kept, self.kept = tuple(self.kept), []
        return kept

    def where(self, condition: Any, x: Any, y: Any) -> Any:
        def choose(a: Any, b: Any) -> Any:
            if not isinstance(a, TimedArray):
                return np.where(condition, a, b)
            out = self.allocate(a.shape, a.itemsize, np.where(condition, a.ready, b.ready))
            primals = a.bare, b.bare
            self.record(out, lambda given, gradients: [gradients.add(leaf, given.ready) for leaf in primals])
            return out

        return map_leaves(choose, x, y)

    def loop(self, first: int, last: int, body: Callable[[int, Any], Any], state: Any) -> Any:
        """A rolled loop copies the arrays that hops bring to the place where the next iteration reads them, and its
        state has its own memory: arguments are copied there, and no other initial value is kept in addition."""
        self.turns = max(self.turns, last - first)
        if last - first == 1 and self.plan.shards == 1:
            return body(first, state)
        if first < last:
            state, self.in_loop = map_leaves(self._carry, state), True
        for index in range(first, last):
            before = self.received_bytes
            state = body(index, state)
            if self.plan.unroll == 1:
                self.touch(2 * (self.received_bytes - before))
        self.in_loop = False
        return state

    def _carry(self, leaf: TimedArray) -> TimedArray:
        """An array as a loop's state, without the caller's reference to it."""
        if self.recording or leaf.memory is None or (leaf.memory.argument and self.plan.unroll > 1):
            return leaf
        own = Allocation(self.ledger, leaf.memory.nbytes if leaf.memory.argument else leaf.memory.hand_over())
        return TimedArray(leaf.shape, leaf.itemsize, leaf.ready, own)

    def _path(self, axis: str, by: int) -> Path:
        """The path to the device `by` places ahead, for each device."""
        if (axis, by) not in self._paths:
            source = np.roll(self.grid, by, self.axes.index(axis)).reshape(-1)
            size, at = self.size(axis), self.index(axis)[source]
            places, step = (by, 1) if 2 * by <= size else (size - by, -1)
            hops, back = self.machine.hops_of(axis, size), int(step < 0)
            rates, latencies, network = hops.bytes_per_s[back], hops.latency_s[back], hops.network[back]
            way = (at + step * np.arange(places)[:, None]) % size
            per_s, latency_s = rates[way].min(0), latencies[way].max(0)
            if self.machine.torus:
                per_s, latency_s = per_s / places, latencies[way].sum(0)
            self._paths[axis, by] = Path(source, step, 1 / per_s, latency_s, network[way].any(0))
        return self._paths[axis, by]

    def _hop(self, leaf: TimedArray, axis: str, by: int, sends: np.ndarray) -> np.ndarray:
        """When each device has received the data that was sent from `by` places back."""
        source, step, seconds_a_byte, latency_s, network = self._path(axis, by % self.size(axis))
        busy_s = leaf.nbytes * seconds_a_byte
        if self.machine.node:
            timed = self.machine.node.hop(leaf.nbytes, self.grid.size)
            busy_s, latency_s = (
                np.where(network, own, known) for own, known in zip((busy_s, latency_s), timed, strict=True)
            )
        free = self._free(axis, step)
        issued = np.maximum(np.maximum(self.now, leaf.ready)[:, source], self.now)
        start = np.maximum(issued, free[:, source])
        sent = start + busy_s
        arrived, all_send = sent + latency_s, sends.all()
        if all_send:
            free[:, source] = sent
        else:
            comes = sends[self.index(axis)[source]]
            free[:, source] = np.where(comes, sent, free[:, source])
            start, arrived = (np.where(comes, when, self.now) for when in (start, arrived))
            sent = np.where(comes, sent, 0)
        self.received_bytes += leaf.nbytes
        if not self._hides("collective-permute", axis, leaf, 1, start, arrived):
            self.now = np.maximum(self.now, arrived)
            self.now[:, source] = np.maximum(self.now[:, source], sent)
        return arrived

    def _free(self, axis: str, step: int) -> np.ndarray:
        """When each device's link along an axis is free."""
        return self._links.setdefault((axis, step), np.zeros_like(self.now))

    def _gather(self, opcode: str, block: TimedArray, ready: np.ndarray, axis: str) -> np.ndarray:
        """When an all-gather or reduce-scatter of such blocks ends."""
        if (size := self.size(axis)) == 1:
            return ready
        time = gather_time(self.machine, opcode, axis, size, block.nbytes)
        return self._together(opcode, block, size - 1, ready, axis, time)

    def _exchange(self, leaf: TimedArray, axis: str) -> np.ndarray:
        """When an all-to-all ends."""
        size, block = self.size(axis), TimedArray((leaf.elements // self.size(axis),), leaf.itemsize, leaf.ready)
        time = all_to_all_time(self.machine, axis, size, block.nbytes)
        return self._together("all-to-all", block, size - 1, leaf.ready, axis, time)

    def _reduce(self, leaf: TimedArray, axis: str) -> np.ndarray:
        """When an all-reduce ends. Bytes are the ring's in all cases: the program does not say which way it takes."""
        size = self.size(axis)
        block = TimedArray((leaf.elements * 2 * (size - 1) // size,), leaf.itemsize, leaf.ready)
        time = all_reduce_time(self.machine, axis, size, leaf.nbytes)
        return self._together("all-reduce", block, 1, leaf.ready, axis, time)

    def _together(
        self, opcode: str, block: TimedArray, blocks: int, ready: np.ndarray, axis: str, time: CollectiveTime
    ) -> np.ndarray:
        """When a collective ends on each device: all devices of an axis start when the last of them is ready and their
        links are free, in one direction or both."""
        line, shape = self.axes.index(axis) + 1, (len(self.now), *self.grid.shape)
        links = [self._free(axis, by) for by in (1, -1)[: time.directions]]
        last = np.maximum.reduce([ready + np.zeros_like(self.now), self.now, *links]).reshape(shape)
        start = np.broadcast_to(last.max(line, keepdims=True), shape).reshape(self.now.shape)
        for free in links:
            free[:] = start + time.busy_s
        end = start + time.busy_s + time.latency_s + self.machine.collective_latency_s
        if not self._hides(opcode, axis, block, blocks, start, end):
            self.now = np.maximum(self.now, end)
        return end

    def _hides(
        self, opcode: str, axis: str, block: TimedArray, blocks: int, start: np.ndarray, end: np.ndarray
    ) -> bool:
        """Record a transfer of `blocks` blocks; return whether compute runs at the same time."""
        self.along[axis, opcode] += blocks * block.nbytes
        self.transfers[opcode, blocks * math.prod(block.shape), block.itemsize] += 1
        self.windows.append((start, end))
        alike = self.passes, opcode, block.itemsize
        self._alike[alike] += 1
        return self.machine.overlaps_compute(*alike, self._alike[alike])
