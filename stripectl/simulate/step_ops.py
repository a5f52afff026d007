"""`ops` on a clock: the arithmetic of layers with arrays that have only a shape, with what the backward pass repeats.

A program runs in one of three ways. *Without a tape* its operations run at once, and nothing else happens: the forward
pass of a layer whose values are not kept. *Recorded*, they run at once, and all values are kept. *Replayed*, in the
backward pass of a layer, each operation whose result `remat` did not keep waits until another operation needs it, so
that nothing is computed again without need, as in `jax.checkpoint`. The backward pass then runs the recorded operations
in reverse order: each one first makes the values that its gradients need.
"""

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from stripectl.core.mesh import HEAD_AXES
from stripectl.core.ops import Weights
from stripectl.core.parameters import USED, Parameter, parameter_gather
from stripectl.core.plan import Plan
from stripectl.core.recurrence import Recurrence
from stripectl.core.scheme import schemes
from stripectl.core.workload import DTYPE_BYTES
from stripectl.simulate.step_clock import AttentionTime, Seconds, StepClock
from stripectl.simulate.transfers import share_sent

FLOAT32 = DTYPE_BYTES["float32"]
ROWS = 1  # dimension of hidden states (b, t, d)
TOKENS_OF_HEADS = 2  # dimension of (b, n, t, h)
# Kinds of operations, as `training.sharding.POLICIES` tells them apart.
MOVE, MATRIX, SUM, OTHER = "move", "matrix", "sum", "other"
GATHER = "gather"  # of a parameter: never kept, and under way before the first operation needs it
KEEPS = {"full": (), "attention": (), "dots": (MATRIX, SUM), "none": (MATRIX, SUM, OTHER)}


@dataclass(eq=False)
class Value:
    """An array of one device: its shape, bytes per element, when it is there, and how it is made if it is not yet."""

    shape: tuple[float, ...]
    itemsize: int
    ready: Seconds = 0.0
    make: Callable[[], None] | None = None

    @property
    def nbytes(self) -> float:
        return math.prod(self.shape) * self.itemsize


class Operation(NamedTuple):
    """A recorded operation: its part of the step, the values that its gradients need, and their computation."""

    section: str
    needs: Sequence[Value]
    backward: Callable[[], Any]


class AttentionTimes(NamedTuple):
    """The times of a layer's attention: forward; forward again in the backward pass; the transfers alone that the
    backward pass repeats; and backward. `again` and `moves` are None where nothing is repeated."""

    forward: AttentionTime
    again: AttentionTime | None
    moves: AttentionTime | None
    backward: AttentionTime

    @property
    def all(self) -> list[AttentionTime]:
        return [each for each in self if each]


@dataclass
class SimulatedOps:
    """The arithmetic of a plan's layers in a dtype, on a clock; `gradient_bytes` per element of a gradient are sent."""

    plan: Plan
    dtype: str
    clock: StepClock
    gradient_bytes: int = FLOAT32
    tape: list[Operation] | None = None
    keeps: Sequence[str] | None = None  # kinds whose values were kept, in a program that is replayed

    @property
    def itemsize(self) -> int:
        return DTYPE_BYTES[self.dtype]

    @property
    def devices(self) -> int:
        """The number of devices that divide heads, feed-forward and vocabulary."""
        return self.plan.product(HEAD_AXES)

    @property
    def shards_rows(self) -> bool:
        """Whether they divide the rows of hidden states too."""
        return bool(schemes[self.plan.scheme].row_axes) and self.devices > 1

    @contextmanager
    def section(self, name: str) -> Iterator[None]:
        before, self.clock.section = self.clock.section, name
        yield
        self.clock.section = before

    def record(self, program: Callable[[], Any], keeps: Sequence[str] | None = None) -> list[Operation]:
        """The operations of a program that runs now, or is replayed where only values of some kinds were kept."""
        before, self.tape, self.keeps = (self.tape, self.keeps), [], keeps
        program()
        found = self.tape
        self.tape, self.keeps = before
        return found

    def run(self, program: Callable[[], Any]) -> Any:
        """A program of which nothing is kept."""
        before, self.tape, self.keeps = (self.tape, self.keeps), None, None
        found = program()
        self.tape, self.keeps = before
        return found

    def transpose(self, tape: Sequence[Operation]) -> None:
        """The backward pass of recorded operations."""
        for each in reversed(tape):
            with self.section(each.section):
                self.make(*each.needs)
                each.backward()

    def make(self, *values: Value) -> None:
        """Compute values that do not exist yet, and wait until all are there."""
        for each in values:
            if make := each.make:
                each.make = None
                make()
            self.clock.wait(each.ready)

    def operation(
        self,
        shape: tuple[float, ...],
        inputs: Sequence[Value],
        forward: Callable[[], Seconds | None] | None = None,
        backward: Callable[[], Any] | None = None,
        *,
        needs: Sequence[Value] = (),
        kind: str = OTHER,
        kept: bool | None = None,
        itemsize: int | None = None,
    ) -> Value:
        """The result of an operation. `forward` returns when the result is there if that is later than now. The result
        is kept if values of its `kind` are, unless `kept` says so."""
        out, section = Value(shape, itemsize or self.itemsize), self.clock.section

        def make() -> None:
            self.make(*inputs)
            with self.section(section):
                ready = forward and forward()
                out.ready = 0.0 if ready is None else ready

        if self.keeps is None or kind == GATHER:
            make()
        elif not (kind in self.keeps if kept is None else kept):
            out.make = make
        if self.tape is not None and backward:
            self.tape.append(Operation(section, needs, backward))
        return out

    def to_tensor_parallel(self, x: Value) -> Value:
        if self.devices == 1:
            return x
        if not self.shards_rows:
            return self.operation(x.shape, [x], None, lambda: self._sum(x), kind=MOVE)
        whole = (x.shape[0], x.shape[1] * self.devices, *x.shape[2:])
        out = Value(whole, x.itemsize)
        return self.operation(
            whole, [x], lambda: self._part("all-gather", out), lambda: self._part("reduce-scatter", out), kind=MOVE
        )

    def from_tensor_parallel(self, x: Value) -> Value:
        if self.devices == 1:
            return x
        if not self.shards_rows:
            return self.operation(x.shape, [x], lambda: self._sum(x), kind=SUM)
        part = (x.shape[0], x.shape[1] / self.devices, *x.shape[2:])
        return self.operation(
            part, [x], lambda: self._part("reduce-scatter", x), lambda: self._part("all-gather", x), kind=SUM
        )

    def _sum(self, x: Value, nbytes: float | None = None) -> None:
        self.clock.send("all-reduce", HEAD_AXES, 2 * share_sent(self.plan, HEAD_AXES) * (nbytes or x.nbytes))

    def _part(self, opcode: str, whole: Value) -> None:
        self.clock.send(opcode, HEAD_AXES, share_sent(self.plan, HEAD_AXES) * whole.nbytes)

    def einsum(self, equation: str, x: Value, weight: Value, dtype: str | None = None) -> Value:
        given, out = equation.split("->")
        left, right = given.split(",")
        size = dict(zip(left + right, x.shape + weight.shape, strict=True))
        rows, inner, cols = (
            math.prod(size[letter] for letter in letters)
            for letters in (
                set(left) - set(right),
                set(left) & set(right),
                set(right) - set(left),
            )
        )

        def backward() -> None:
            self.clock.multiply(rows, cols, inner)
            self.clock.multiply(inner, rows, cols)

        return self.operation(
            tuple(size[letter] for letter in out),
            [x, weight],
            lambda: self.clock.multiply(rows, inner, cols),
            backward,
            needs=(x, weight),
            kind=MATRIX,
            itemsize=DTYPE_BYTES[dtype] if dtype else None,
        )

    def elementwise(self, x: Value, *others: Value, needs: bool = True, itemsize: int | None = None) -> Value:
        """The result of an operation on elements, in the shape of x, whose gradients may need its inputs."""
        inputs = (x, *others)
        return self.operation(x.shape, inputs, None, without_cost, needs=inputs if needs else (), itemsize=itemsize)

    def add(self, x: Value, y: Value) -> Value:
        return self.elementwise(x, y, needs=False)

    def scale(self, x: Value, factor: float) -> Value:
        return self.elementwise(x, needs=False)

    def norm(self, x: Value, scale: Value | None = None, factor: float = 1.0) -> Value:
        return self.elementwise(x, *([] if scale is None else [scale]))

    def norm_over_heads(self, x: Value, scale: Value) -> Value:
        batch, _, rows, _ = x.shape
        total = (batch, 1, rows, 1)

        def send() -> None:  # the sum of squares, and its gradient
            if self.devices > 1:
                self._sum(x, math.prod(total) * FLOAT32)

        squares = self.operation(total, [x], send, send, needs=[x], kind=SUM, itemsize=FLOAT32)
        return self.elementwise(x, squares, scale)

    def rotate(self, x: Value, turn: Any, factor: float = 1.0) -> Value:
        return self.elementwise(x, needs=False)

    def add_bias(self, x: Value, bias: Value) -> Value:
        return self.elementwise(x, bias, needs=False)

    def add_scaled(self, x: Value, values: Value, scale: Value) -> Value:
        return self.operation(x.shape, [x, values, scale], None, without_cost, needs=[values, scale])

    def activate(self, activation: str, x: Value, up: Value | None = None) -> Value:
        return self.elementwise(x, *([] if up is None else [up]))

    def embed(self, table: Value, tokens: Value) -> Value:
        cols = table.shape[1]
        found = self.operation((*tokens.shape, cols), [table], None, without_cost)
        if self.devices == 1:
            return found
        if self.shards_rows:
            batch, rows = tokens.shape

            def exchange() -> None:
                self.clock.send("all-to-all", HEAD_AXES, share_sent(self.plan, HEAD_AXES) * found.nbytes)

            return self.operation((batch, rows / self.devices, cols * self.devices), [found], exchange, exchange)
        whole = Value((*tokens.shape, cols * self.devices), self.itemsize)
        return self.operation(whole.shape, [found], lambda: self._part("all-gather", whole))

    def embed_parts(self, table: Value, tokens: Value) -> Value:
        return self.from_tensor_parallel(self.operation((*tokens.shape, table.shape[1]), [table], None, without_cost))

    def cross_entropy(self, logits: Value, targets: Value) -> Value:
        each = math.prod(targets.shape) * FLOAT32  # of a number for every target

        def total() -> None:  # the largest logit, and the sum of exponentials
            self._sum(logits, each)
            self._sum(logits, each)

        forward = (total, lambda: self._sum(logits, each)) if self.devices > 1 else (None, None)
        exponentials, score = (
            self.operation(targets.shape, [logits], run, kind=SUM, itemsize=FLOAT32) for run in forward
        )
        return self.operation(
            (), [exponentials, score], None, without_cost, needs=(logits, exponentials), itemsize=FLOAT32
        )

    def soft_cap(self, x: Value, cap: float) -> Value:
        return self.elementwise(x, itemsize=FLOAT32)

    def convolve(self, x: Value, before: Value, weight: Value) -> Value:
        return self.elementwise(x, before, weight)

    def log_gate(self, x: Value, recurrence: Recurrence, weights: Weights) -> Value:
        soft = recurrence.gate_activation == "softplus"
        own = [weights[name] for name in ("gate_rate", "gate_offset") if soft]
        return self.elementwise(x, *own, itemsize=FLOAT32)

    def sigmoid(self, x: Value) -> Value:
        return self.elementwise(x, itemsize=FLOAT32)

    def split_rows(self, x: Value, parts: int) -> Sequence[Value]:
        return [self._rows(x.shape[TOKENS_OF_HEADS] / parts, x) for _ in range(parts)]

    def join_rows(self, parts: Sequence[Value]) -> Value:
        return self._rows(sum(each.shape[TOKENS_OF_HEADS] for each in parts), *parts)

    def last_rows(self, x: Value, rows: int) -> Value:
        return self._rows(rows, x)

    def _rows(self, rows: float, *inputs: Value) -> Value:
        batch, heads, _, size = inputs[0].shape
        return self.operation((batch, heads, rows, size), inputs)

    def pack(self, arrays: Sequence[Value]) -> Value:
        batch = arrays[0].shape[0]
        return self.operation((batch, sum(math.prod(each.shape) / batch for each in arrays)), arrays)

    def unpack(self, packed: Value, like: Sequence[Value]) -> Sequence[Value]:
        return [self.operation(each.shape, [packed]) for each in like]

    def zeros_like(self, x: Value) -> Value:
        return self.operation(x.shape, [])

    def blockwise(
        self, program: Callable[..., Value], weights: Weights, x: Value, targets: Value | None = None
    ) -> Value:
        rows, parts = x.shape[ROWS], self.devices if self.shards_rows else 1
        chunk = self.plan.chunk_rows(int(rows * parts)) / parts
        given = [x, *([] if targets is None else [targets])]
        if chunk == rows:
            return program(*given, weights)
        chunks, gathered = rows / chunk, dict(weights)  # once for all chunks

        def of_chunk() -> Value:
            own = [Value((each.shape[0], each.shape[1] / chunks, *each.shape[2:]), each.itemsize) for each in given]
            return program(*own, gathered)

        def forward() -> None:
            with self.clock.repeated(chunks):
                self.run(of_chunk)

        def backward() -> None:
            with self.clock.repeated(chunks):
                self.transpose(self.record(of_chunk, keeps=()))

        inputs = (x, *gathered.values())
        return self.operation(() if targets else x.shape, inputs, forward, backward, needs=inputs)

    def attend(self, times: AttentionTimes, value_dim: float, q: Value, *others: Value) -> Value:
        """The output of attention, whose times are known."""

        def backward() -> None:
            if times.moves:
                self.clock.attend(times.moves)
            self.clock.attend(times.backward)

        forward = times.again if self.keeps is not None and times.again else times.forward
        return self.operation(
            (*q.shape[:-1], value_dim),
            [q, *others],
            lambda: self.clock.attend(forward),
            backward,
            needs=[q, *others],
            kept=not times.again,
        )

    def parameter(self, parameter: Parameter, first: bool = True) -> Value:
        """A parameter, gathered where it is used; its gradient is scattered and summed where that is known, with the
        gradient of its `first` use."""
        how = parameter_gather(parameter, self.plan)
        share = share_sent(self.plan, how.updated) * how.elements

        def gather() -> Seconds | None:
            if how.stored:
                return self.clock.send_parameters("all-gather", how.stored, share * self.itemsize)
            return None

        def scatter() -> None:
            if how.updated:
                self.clock.send_parameters("reduce-scatter", how.updated, share * self.gradient_bytes)
            if how.summed:
                own = how.elements / self.plan.product(how.updated) * self.gradient_bytes
                self.clock.send_parameters("all-reduce", how.summed, 2 * share_sent(self.plan, how.summed) * own)

        shape = tuple(
            size / (self.devices if dim and USED[dim] == HEAD_AXES else 1)
            for size, dim in zip(parameter.shape, parameter.dims, strict=True)
        )
        kind = MOVE if parameter.added else GATHER
        return self.operation(shape, [], gather, scatter if first else None, kind=kind, itemsize=FLOAT32)


@dataclass(frozen=True)
class SimulatedWeights(Mapping[str, Value]):
    """The parameters of a layer, each gathered where the program reads it. The gradients of `used` parameters join the
    gradients of an earlier use."""

    table: Mapping[str, Parameter]
    ops: SimulatedOps
    used: Collection[str] = ()

    def __getitem__(self, name: str) -> Value:
        return self.ops.parameter(self.table[name], first=name not in self.used)

    def __iter__(self) -> Iterator[str]:
        return iter(self.table)

    def __len__(self) -> int:
        return len(self.table)


@dataclass(frozen=True)
class HaloComm:
    """The part of `comm` that layers use outside attention: a shift along an axis, on which all devices do the same."""

    ops: SimulatedOps

    def size(self, axis: str) -> int:
        return self.ops.plan.size(axis)

    def index(self, axis: str) -> int:
        return 0

    def shift(
        self, x: Any, axis: str, what: str = "", by: int = 1, senders: Callable[[int], bool] | None = None
    ) -> Any:
        def send() -> None:
            self.ops.clock.send("collective-permute", (axis,), x.nbytes)

        return self.ops.operation(x.shape, [x], send, send)

    def where(self, condition: Any, x: Any, y: Any) -> Any:
        return self.ops.operation(x.shape, [x, y])


def without_cost() -> None:
    """The gradients of an operation without cost."""
