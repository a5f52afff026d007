"""`attend` of a recurrence on simulated clocks: chunks of maps are `whole` tiles, chunks with outputs `boundary`
tiles."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from stripectl.core.comm import ELEMENTS, HEADS, ROWS
from stripectl.core.layout import Tile
from stripectl.core.plan import Plan
from stripectl.core.recurrence import HEADS_AT_ONCE
from stripectl.core.workload import Workload
from stripectl.simulate.attend import ACCUMULATOR_BYTES, SimulatedAttend
from stripectl.simulate.clocks import DeviceClocks
from stripectl.simulate.memory import TimedArray, leaves, map_leaves


class SimulatedGatedAttend(SimulatedAttend):
    """Outputs wait for the state before a shard. Applying a map to a state, or composing two maps, takes the time to
    read and write them. A shard in zigzag order has a map for each of its two runs of tokens, and its arrays are
    copied into runs and back."""

    def __init__(
        self, workload: Workload, plan: Plan, clocks: DeviceClocks, tiles: Mapping[str, tuple[Tile, ...]]
    ) -> None:
        super().__init__(workload, plan, clocks, tiles)
        assert workload.gated
        self.recurrence, self.key_dim = workload.gated, workload.head_dim

    def empty(self, q: TimedArray) -> TimedArray:
        return q.bare

    def zeros(self, saved: Any) -> TimedArray:
        return saved[0].bare

    def __call__(self, q: TimedArray, kv: Any, me: Any, src: Any, *, into: Any, part: Any = None) -> TimedArray:
        return self.apply(q, kv, self._none(kv), into=into)

    def backward(self, saved: Any, kv: Any, me: Any, src: Any, *, into: Any, part: Any = None) -> Any:
        return self.state_backward(saved, kv, self._none(kv), self._none(kv), into=(into, None))

    def local_part(self, q: TimedArray, kv: Any, me: Any, part: Any, *, into: TimedArray) -> TimedArray:
        return into

    def local_part_backward(self, saved: Any, kv: Any, me: Any, part: Any, *, into: TimedArray) -> TimedArray:
        return into

    def keys_backward(self, saved: Any, kv: Any, me: Any) -> Any:
        return None

    def saved_state(self, saved: Any) -> TimedArray | None:
        _, dout, residual, _ = saved
        return self._state(dout, residual.ready) if self.keeps else None

    def _copied(self, *arrays: TimedArray) -> None:
        """The time to copy arrays into runs of tokens, or back."""
        if self.sharding.runs > 1:
            self.clocks.touch(2 * sum(x.nbytes for x in arrays), *arrays)

    def map_of(self, kv: Any) -> TimedArray:
        self._copied(*leaves(kv))
        return self._map(kv[1], self._chunks("forward", kv[1], leaves(kv), whole=1))

    def transposed_map_of(self, saved: Any, kv: Any) -> TimedArray:
        q, dout, *_ = saved
        self._copied(dout)
        return self._map(dout, self._chunks("backward", dout, [q, dout, *leaves(kv)], whole=1))

    def state_of(self, own: TimedArray) -> TimedArray:
        return self.clocks.free((*own.shape[:2], self.key_dim, self.value_dim), own.itemsize, own)

    def advance_state(self, state: TimedArray, own: TimedArray, shards: int = 1) -> TimedArray:
        end = self.clocks.touch(own.nbytes + 2 * state.nbytes, state, own)
        return self.clocks.allocate(state.shape, state.itemsize, end)

    def compose(self, later: TimedArray, earlier: TimedArray, shards: int = 1) -> TimedArray:
        return self.clocks.allocate(later.shape, later.itemsize, self.clocks.touch(3 * later.nbytes, later, earlier))

    def state_before(self, maps: TimedArray, me: Any, by: int = 1) -> TimedArray:
        shards, *own = maps.shape
        shape = (*own[:2], self.key_dim, self.value_dim)
        runs = self.sharding.runs
        moved = (runs * shards - 1) * (maps.nbytes // shards + 2 * math.prod(shape) * maps.itemsize)
        return self.clocks.allocate(shape, maps.itemsize, self.clocks.touch(moved, maps))

    def apply(self, q: TimedArray, kv: Any, before: TimedArray, *, into: TimedArray) -> TimedArray:
        values = kv[1]
        self._copied(q, values)
        out = self.clocks.allocate(values.shape, ACCUMULATOR_BYTES, self.clocks.now)
        return out.at(self._chunks("forward", values, [q, before, *leaves(kv)], boundary=1))

    def state_backward(self, saved: Any, kv: Any, before: TimedArray, behind: TimedArray, *, into: Any) -> Any:
        q, dout, *_ = saved
        dq, dkv = map_leaves(lambda leaf: self.clocks.allocate(leaf.shape, ACCUMULATOR_BYTES, self.clocks.now), (q, kv))
        chunks = np.array([-(-dout.shape[ROWS] // tile.block_kv) for tile in self.tiles["backward"]])
        heads = min(HEADS_AT_ONCE, dout.shape[0] * dout.shape[HEADS])
        self.clocks.ledger.beside(chunks * heads * self.key_dim * dout.shape[ELEMENTS] * ACCUMULATOR_BYTES)
        end = self._chunks("backward", dout, [q, dout, before, behind, *leaves(kv)], boundary=1)
        self._copied(q, *leaves(kv))
        return map_leaves(lambda leaf: leaf.at(end), (dq, dkv))

    def _none(self, kv: Any) -> TimedArray:
        """A state of zeros."""
        return self._state(kv[1], self.clocks.now)

    def _state(self, values: TimedArray, ready: np.ndarray) -> TimedArray:
        return self.clocks.allocate((*self._heads(values), self.key_dim, self.value_dim), ACCUMULATOR_BYTES, ready)

    def _heads(self, values: TimedArray) -> tuple[int, int]:
        """(requests, heads), where each run of tokens counts as a request."""
        batch, heads, *_ = values.shape
        return batch * self.sharding.runs, heads

    def _map(self, values: TimedArray, ready: np.ndarray) -> TimedArray:
        elements = self.recurrence.map_elements(self.key_dim, self.value_dim)
        return self.clocks.allocate((*self._heads(values), elements), ACCUMULATOR_BYTES, ready)
