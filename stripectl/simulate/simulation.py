"""A simulated scheme: the program that runs on devices, with arrays that hold only a shape and a time for each device.

Devices along the axes that divide heads and batch are equal. A backward pass is the scheme's own, or the transpose of
the forward pass (`clocks`).
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from stripectl.core.attend import PartialResult
from stripectl.core.comm import ROWS
from stripectl.core.intervals import Overlap, overlap, union_s
from stripectl.core.kernel import kernels
from stripectl.core.mask_tiles import TileCount
from stripectl.core.plan import Plan
from stripectl.core.scheme import Scheme, schemes
from stripectl.core.sequence_sharding import axes_of, calls_once, query_sharding, sequence_sharding
from stripectl.core.workload import DTYPE_BYTES, Workload
from stripectl.costs.cost_model import CostModel, stack_cost_models
from stripectl.simulate.attend import ACCUMULATOR_BYTES, KernelCall, SimulatedAttend
from stripectl.simulate.clocks import Gradients
from stripectl.simulate.comm import SimulatedComm
from stripectl.simulate.gated_attend import SimulatedGatedAttend
from stripectl.simulate.memory import TimedArray, bytes_held, latest, leaves
from stripectl.simulate.one_call import SimulatedOneCall
from stripectl.util.plug_in_errors import wrong_result


@dataclass(frozen=True)
class Simulation:
    """The result of a simulation: when the slowest device ended; every call of the kernel; a device's transfers by
    (opcode, elements, itemsize), its bytes by (axis, opcode), and the time of each transfer; the peak memory of a
    device; when memory was read and written outside of tiles; and the iterations of the longest loop."""

    seconds: float
    rounds: list[KernelCall]
    transfers: Counter[tuple[str, int, int]]
    along: Counter[tuple[str, str]]
    peak_bytes: int
    windows: list[tuple[np.ndarray, np.ndarray]]
    touched: list[tuple[np.ndarray, np.ndarray]] = field(default_factory=list)
    turns: int = 0
    moves_s: float = 0.0  # of the scheme's enter and leave, forward, and of the transfers of kept values
    held_bytes: int = 0  # that stay in memory from the forward pass to the backward pass

    @property
    def sent(self) -> dict[str, int]:
        """Bytes that a device sent, by opcode."""
        return by_opcode(self.along)

    @property
    def overlap(self) -> Overlap | None:
        """The overlap on the device that computes longest, or among equal devices on the most exposed one, and
        otherwise on the device that hides most; None where nothing was sent. Devices that wait for it have little
        compute to hide behind, which is imbalance and not slow communication."""
        if not self.windows:
            return None
        compute = [np.stack([each.start_s, each.end_s], 1) for each in self.rounds]
        compute += [np.stack(each, 1) for each in self.touched]
        windows = [np.stack(window, 1) for window in self.windows]
        each = [(union_s([c[d] for c in compute]), [w[d] for w in windows], d) for d in range(len(compute[0]))]
        longest = max(busy for busy, _, _ in each)
        found = [overlap([c[d] for c in compute], sent) for busy, sent, d in each if busy > 0.999 * longest]
        return max(found, key=lambda one: (one.exposed_s, one.hidden_s))


def simulate(workload: Workload, plan: Plan, machine: CostModel, *, layer: bool = False) -> Simulation:
    """Simulate the plan's scheme. The plan must name its tile and be supported. In a `layer` the memory of inputs and
    outputs is free for other arrays once nothing reads them any more, and the hidden states of a scheme that moves them
    are moved already."""
    run = _run(workload, [plan], machine, layer)
    ends, clocks, attend = run.ends, run.clocks, run.attend

    def alone(times: np.ndarray) -> np.ndarray:
        return np.broadcast_to(times, clocks.now.shape)[0]

    rounds = []
    for each in attend.rounds_run:
        tiles = TileCount(*map(alone, each.tiles))
        rounds.append(each._replace(start_s=alone(each.start_s), end_s=alone(each.end_s), tiles=tiles))
    windows, touched = (
        [(alone(start_s), alone(end_s)) for start_s, end_s in times] for times in (clocks.windows, clocks.touched)
    )
    return Simulation(
        float(ends[0]),
        rounds,
        clocks.transfers,
        clocks.along,
        int(clocks.ledger.peak[0]),
        windows,
        touched,
        clocks.turns,
        float(run.moves_s[0]),
        run.held_bytes,
    )


class GroupTimes(NamedTuple):
    """The times of plans that differ only in their tiles, by plan: the total, and the end of the forward pass; the
    bytes that a device sends by (axis, opcode), in total and in the forward pass; and its peak memory."""

    seconds: np.ndarray
    forward_s: np.ndarray
    along: Counter[tuple[str, str]]
    forward_along: Counter[tuple[str, str]]
    peak_bytes: np.ndarray
    computed: np.ndarray  # tiles of the forward pass, of all heads and devices
    turns: int  # iterations of the longest loop
    moves_s: np.ndarray  # of the scheme's enter and leave, forward, and of the transfers of kept values
    moves_along: Counter[tuple[str, str]]
    held_bytes: int  # that stay in memory from the forward pass to the backward pass

    @property
    def sent(self) -> dict[str, int]:
        """Bytes that a device sends, by opcode."""
        return by_opcode(self.along)


def by_opcode(along: Mapping[tuple[str, str], int]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for (_, opcode), nbytes in along.items():
        total[opcode] += nbytes
    return dict(total)


def simulate_times(
    workload: Workload, plans: Sequence[Plan], machines: Sequence[CostModel], *, layer: bool = False
) -> GroupTimes:
    """The times of plans that differ only in tiles, each on its own machine, where machines differ only in tile costs:
    many `simulate` at once, without the details that explain a time."""
    run = _run(workload, plans, stack_cost_models(machines), layer)
    clocks = run.clocks
    peak, computed = np.broadcast_to(clocks.ledger.peak, len(plans)), np.zeros(len(plans), int)
    for each in run.attend.rounds_run:
        if each.passes == "forward":
            computed = computed + each.heads * np.broadcast_to(each.tiles.computed, clocks.now.shape).sum(-1)
    return GroupTimes(
        run.ends,
        run.forward_ends,
        clocks.along,
        run.forward_along,
        peak,
        computed,
        clocks.turns,
        run.moves_s,
        run.moves_along,
        run.held_bytes,
    )


class _Run(NamedTuple):
    ends: np.ndarray
    forward_ends: np.ndarray
    forward_along: Counter[tuple[str, str]]
    moves_s: np.ndarray
    moves_along: Counter[tuple[str, str]]
    held_bytes: int
    clocks: SimulatedComm
    attend: SimulatedAttend


def _devices(
    workload: Workload, plans: Sequence[Plan], machine: CostModel, layer: bool
) -> tuple[SimulatedComm, SimulatedAttend]:
    """The clocks of plans that differ only in tiles, and their kernel on these clocks."""
    plan = plans[0]
    clocks = SimulatedComm(plan, schemes[plan.scheme].axes, machine, arguments=not layer)
    tiles = {passes: tuple(each.tiles[passes] for each in plans) for passes in plan.tiles}
    return clocks, attend_of(workload, plan)(workload, plan, clocks, tiles)


def attend_of(workload: Workload, plan: Plan) -> type[SimulatedAttend]:
    """The `attend` of a plan, as `execute.attention` chooses it."""
    if workload.gated:
        return SimulatedGatedAttend
    once = calls_once(kernels[plan.kernel], sequence_sharding(workload, plan))
    return SimulatedOneCall if once else SimulatedAttend


def _run(workload: Workload, plans: Sequence[Plan], machine: CostModel, layer: bool) -> _Run:
    """When each of the plans ends, and the clocks that they ran on."""
    plan = plans[0]
    scheme: Scheme = schemes[plan.scheme]
    clocks, attend = _devices(workload, plans, machine, layer)
    moved = layer and bool(scheme.row_axes)
    how = "keys" if moved else query_sharding(workload, plan)
    at_rest = inputs(workload, plan, clocks, how)
    both = workload.passes != "forward"
    given = output_cotangent(workload, plan, clocks, how) if both else None
    clocks.recording = both
    q, kv = at_rest if moved else scheme.enter(at_rest, attend, clocks)
    entered, moves_along, begun = _end(clocks, q, *kv), clocks.along.copy(), len(clocks.windows)
    entry = clocks.recorded()
    clocks.recording = both and scheme.backward is None
    clocks.keeps = both and scheme.backward is not None
    state = scheme.forward(q, kv, attend, clocks)
    if not isinstance(state, TimedArray | PartialResult):
        raise wrong_result("forward", scheme.forward, "the state of its queries", state)
    primals, kept = [leaf.bare for leaf in (q, *leaves(kv))], clocks.take_kept()
    if kept:
        kv, again = kept, sum((end_s - start_s).max(-1) for start_s, end_s in clocks.windows[begun:])
        entered, moves_along = entered + again, clocks.along.copy()
        del kept
    if not both or scheme.backward is None:
        q, kv = q.bare, None
    out = attend.finish(q, state)
    del state
    met, met_along = _end(clocks, out), clocks.along.copy()
    meeting = clocks.recorded()
    clocks.recording = both
    result = out if moved else scheme.leave(out, attend, clocks)
    ready = result.ready
    forward_ends, forward_along = _end(clocks, result), clocks.along.copy()
    moves_s, moves_along = entered + forward_ends - met, moves_along + forward_along - met_along
    if scheme.backward is None:  # the tape holds arrays
        held_bytes = clocks.ledger.in_use - (given.nbytes if given else 0)
    else:
        held_bytes = bytes_held(leaves((at_rest, (q, kv or ()), out, result)))
    if both:
        assert given
        leaving, gradients = clocks.recorded(), Gradients(clocks.ledger)
        clocks.passes, clocks.recording = "backward", False
        gradients.add(result, np.maximum(ready, clocks.now), given.memory)
        clocks.transpose(leaving, gradients)
        if layer:
            result, out = result.bare, out if attend.saves_output and scheme.backward else out.bare
        if scheme.backward is None:
            clocks.transpose(meeting, gradients)
        else:
            given_back = [q, kv]
            del q, kv
            _own_backward(scheme, given_back, primals, out, attend, clocks, gradients)
        clocks.transpose(entry, gradients)
        each = [gradient.ready for primal in leaves(at_rest) if (gradient := gradients.take(primal))]
        ready = np.maximum.reduce([ready + np.zeros_like(clocks.now), *each])
    ends = np.maximum(ready, clocks.now).max(-1)
    return _Run(ends, forward_ends, forward_along, moves_s, moves_along, held_bytes, clocks, attend)


def _end(clocks: SimulatedComm, *arrays: TimedArray) -> np.ndarray:
    """When the last device has the arrays, by plan."""
    return np.maximum(latest(arrays), clocks.now).max(-1)


def _own_backward(
    scheme: Scheme,
    met: list[Any],
    primals: list[TimedArray],
    out: TimedArray,
    attend: SimulatedAttend,
    clocks: SimulatedComm,
    gradients: Gradients,
) -> None:
    """The scheme's own backward pass of `met`, which holds queries, and keys and values or what was kept of them;
    `primals` are queries, keys and values. `met` is emptied, so that arrays that the pass no longer reads leave memory.
    """
    cotangent = gradients.take(out)
    assert scheme.backward and cotangent
    q, kv = met
    met.clear()
    row = TimedArray(q.shape[: ROWS + 1], ACCUMULATOR_BYTES, cotangent.ready)
    saved = (q.at(cotangent.ready), cotangent, row, row.at(cotangent.ready), *([out] if attend.saves_output else []))
    result = scheme.backward(saved, kv, attend, clocks)
    found = leaves(result) if isinstance(result, tuple | TimedArray) else []
    if len(found) != len(primals):
        raise wrong_result("backward", scheme.backward, "(dq, dkv) with the structure of (q, kv)", result)
    del result, saved, cotangent, q, kv
    for primal in primals:
        gradients.add(primal, found.pop(0).ready)


def inputs(
    workload: Workload, plan: Plan, clocks: SimulatedComm, how: str
) -> tuple[TimedArray, tuple[TimedArray, ...]]:
    """(queries, (keys, values, gates if any)) as they lie on a device before anything moves; queries are sharded by
    `how`."""
    keys = [argument(workload, plan, clocks, "keys", *each) for each in workload.kv_shapes]
    shape = workload.query_heads, workload.queries, (workload.head_dim,), workload.dtype
    return argument(workload, plan, clocks, how, *shape), tuple(keys)


def output_cotangent(workload: Workload, plan: Plan, clocks: SimulatedComm, how: str) -> TimedArray:
    """The cotangent of the output, sharded like queries."""
    shape = workload.heads, workload.queries, (workload.value_dim,), workload.dtype
    return argument(workload, plan, clocks, how, *shape)


def argument(
    workload: Workload, plan: Plan, clocks: SimulatedComm, how: str, heads: int, rows: int, rest: tuple, dtype: str
) -> TimedArray:
    """A device's part of an array that is sharded by `how` (`axes_of`)."""
    lengths = zip((workload.batch, heads, rows), axes_of(plan, how), strict=True)
    return clocks.argument((*(size // plan.product(axes) for size, axes in lengths), *rest), DTYPE_BYTES[dtype])
