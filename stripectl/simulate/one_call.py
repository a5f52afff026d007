"""Simulated `attend` where one call of a library's kernel can hold all scores (`calls_once`, as in `execute.one_call`):
neither time nor memory for a merge, until a scheme makes another call."""

import math
from collections.abc import Mapping
from typing import Any

from stripectl.core.attend import PartialResult
from stripectl.core.comm import ELEMENTS, ROWS
from stripectl.core.layout import WHOLE, Part, Tile
from stripectl.core.plan import Plan
from stripectl.core.workload import Workload
from stripectl.costs.padding import ACCUMULATOR_BYTES
from stripectl.simulate.attend import SimulatedAttend
from stripectl.simulate.clocks import DeviceClocks
from stripectl.simulate.memory import TimedArray, leaves, map_leaves


class SimulatedOneCall(SimulatedAttend):
    """A state is None, a `PartialResult`, or the output of accumulators."""

    saves_output = True

    def __init__(
        self, workload: Workload, plan: Plan, clocks: DeviceClocks, tiles: Mapping[str, tuple[Tile, ...]]
    ) -> None:
        super().__init__(workload, plan, clocks, tiles)
        self.sum_lanes = self.kernel.costs.sum_lanes * (1 if workload.passes == "forward" else 2)

    def empty(self, q: TimedArray) -> None:
        return None

    def zeros(self, saved: Any) -> None:
        return None

    def accumulators(self, state: Any) -> TimedArray:
        """The output of a state in float32, to which other results can be added."""
        if not isinstance(state, PartialResult):
            return state
        out = state.out
        return self.clocks.moved(out.shape, ACCUMULATOR_BYTES, out, times=1 + out.itemsize / ACCUMULATOR_BYTES)

    def __call__(self, q: TimedArray, kv: Any, me: Any, src: Any, *, into: Any, part: Part = WHOLE) -> Any:
        if into is not None or part != WHOLE:
            before = super().empty(q) if into is None else self.accumulators(into)
            return super().__call__(q, kv, me, src, into=before, part=part)
        result = self.clocks.allocate(q.sized(ELEMENTS, self.value_dim).shape, self.itemsize, q.ready)
        cost, needs, sums = self.clocks.machine.forward, [q, result, *leaves(kv)], q.shape[: ROWS + 1]
        held = self.sum_lanes * math.prod(sums) * ACCUMULATOR_BYTES
        out = result.at(self._compute("forward", cost, q, me, src, needs, part, merges=False, held=held))
        self._record_call(out, q, kv, me, src, part, kept=[out])
        return PartialResult(out, TimedArray(sums, ACCUMULATOR_BYTES, out.ready))

    def backward(
        self, saved: Any, kv: Any, me: Any, src: Any, *, into: Any, part: Part = WHOLE
    ) -> tuple[TimedArray, Any]:
        if into is not None or part != WHOLE:
            return super().backward(saved, kv, me, src, into=into or super().zeros(saved), part=part)
        dq = self.clocks.allocate(saved[0].shape, self.itemsize, saved[0].ready)
        needs = [*leaves(saved), dq, *leaves(kv)]
        end = self._compute("backward", self.clocks.machine.backward, saved[0], me, src, needs, part, merges=False)
        return dq.at(end), map_leaves(lambda leaf: self.clocks.allocate(leaf.shape, self.itemsize, end), kv)

    def partial(self, q: TimedArray, state: Any) -> PartialResult:
        return state if isinstance(state, PartialResult) else super().partial(q, state)

    def finish(self, q: TimedArray, state: Any) -> TimedArray:
        return state.out if isinstance(state, PartialResult) else super().finish(q, state)

    def merge(self, state: Any, partial: Any) -> Any:
        return PartialResult(*partial) if state is None else super().merge(self.accumulators(state), partial)

    def maximum(self, state: Any) -> TimedArray:
        return state.lse if isinstance(state, PartialResult) else super().maximum(state)

    def rescale(self, state: Any, maximum: TimedArray) -> tuple[TimedArray, TimedArray]:
        return super().rescale(self.accumulators(state), maximum)
