"""A scheme on clocks: the program that runs on devices, with arrays that hold only a shape and when each device has it.

Devices of the axes that divide heads and batch are all alike. A backward pass is the scheme's own, or the transpose of
what forward did (`clocks`).
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from stripectl.layout import TileCount
from stripectl.machine import Machine
from stripectl.overlap import Overlap, overlap, union_s
from stripectl.pairing import dealing, lie
from stripectl.plan import Plan
from stripectl.scheme import ROWS, Scheme, schemes
from stripectl.simulate.clocks import Clocks, Gradients, Timed, leaves
from stripectl.simulate.timed import ACCUMULATOR_BYTES, Round, TimedAttend
from stripectl.workload import DTYPE_BYTES, Workload


@dataclass(frozen=True)
class Simulation:
    """How a plan went on clocks: when the slowest device ended, every call of the kernel, and what a device sent:
    transfers by (opcode, elements, itemsize), bytes by (axis, opcode), and when each was under way; and when memory was
    read and written beside tiles."""

    seconds: float
    rounds: list[Round]
    transfers: Counter[tuple[str, int, int]]
    along: Counter[tuple[str, str]]
    windows: list[tuple[np.ndarray, np.ndarray]]
    touched: list[tuple[np.ndarray, np.ndarray]] = field(default_factory=list)

    @property
    def sent(self) -> dict[str, int]:
        """Bytes a device sent, by opcode."""
        total: Counter[str] = Counter()
        for (_, opcode), nbytes in self.along.items():
            total[opcode] += nbytes
        return dict(total)

    @property
    def overlap(self) -> Overlap | None:
        """Of the device that computes longest, of those that are alike the most exposed, or else the one that hides
        most; None where nothing was sent. Devices that wait for it have little to hide behind, which is imbalance and
        not slow communication."""
        if not self.windows:
            return None
        compute = [np.stack([each.start_s, each.end_s], 1) for each in self.rounds]
        compute += [np.stack(each, 1) for each in self.touched]
        windows = [np.stack(window, 1) for window in self.windows]
        each = [(union_s([c[d] for c in compute]), [w[d] for w in windows], d) for d in range(len(compute[0]))]
        longest = max(busy for busy, _, _ in each)
        found = [overlap([c[d] for c in compute], sent) for busy, sent, d in each if busy > 0.999 * longest]
        return max(found, key=lambda one: (one.exposed_s, one.hidden_s))


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
    return Simulation(end, attend.rounds_run, clocks.transfers, clocks.along, clocks.windows, clocks.touched)


def inputs(workload: Workload, plan: Plan, clocks: Clocks) -> tuple[Timed, tuple[Timed, Timed]]:
    """(queries, (keys, values)) as they lie on a device before anything moves."""

    def shard(over: tuple[Sequence[str], ...], heads: int, rows: int) -> Timed:
        sizes = (size // plan.product(axes) for size, axes in zip((workload.batch, heads, rows), over, strict=True))
        return Timed((*sizes, workload.head_dim), DTYPE_BYTES[workload.dtype], np.zeros(clocks.grid.size))

    keys = [shard(lie(plan, "keys"), workload.kv_heads, workload.seq_len) for _ in range(2)]
    return shard(lie(plan, dealing(workload, plan)), workload.heads, workload.queries), (keys[0], keys[1])
