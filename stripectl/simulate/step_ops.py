"""`ops` on a clock: the arithmetic of layers with arrays that have only a shape, recorded on a tape (`step_tape`)."""

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stripectl.core.architecture import NORM_EPSILON
from stripectl.core.kept import Kept
from stripectl.core.mesh import HEAD_AXES
from stripectl.core.ops import Weights
from stripectl.core.parameters import USED, Parameter, parameter_gather
from stripectl.core.plan import Plan
from stripectl.core.recurrence import Recurrence
from stripectl.core.scheme import schemes
from stripectl.core.scopes import ATTENTION
from stripectl.core.workload import DTYPE_BYTES
from stripectl.simulate.compiler_arrays import COMPILER_ARRAYS, CompilerArrays
from stripectl.simulate.layer_attention import LayerAttention
from stripectl.simulate.step_clock import Seconds, StepClock
from stripectl.simulate.step_tape import FLOAT32, GATHER, GATHERED, GRADIENTS, MATRIX, MOVE, OTHER, SUM, Recorder, Value
from stripectl.simulate.transfers import share_sent

ROWS = 1  # dimension of hidden states (b, t, d)
TOKENS_OF_HEADS = 2  # dimension of (b, n, t, h)


class SimulatedOps(Recorder):
    """The arithmetic of a plan's layers in a dtype, on a clock; `gradient_bytes` per element of a gradient are sent."""

    def __init__(
        self,
        plan: Plan,
        dtype: str,
        clock: StepClock,
        arrays: CompilerArrays = COMPILER_ARRAYS["tpu"],
        gradient_bytes: int = FLOAT32,
    ) -> None:
        super().__init__(clock, DTYPE_BYTES[dtype], arrays)
        self.plan, self.gradient_bytes = plan, gradient_bytes

    @property
    def gathered_bytes(self) -> int:
        """Bytes in memory per element of a gathered parameter."""
        return FLOAT32 if self.arrays.wide_gathers else self.itemsize

    @property
    def devices(self) -> int:
        """The number of devices that divide heads, feed-forward and vocabulary."""
        return self.plan.product(HEAD_AXES)

    @property
    def shards_rows(self) -> bool:
        """Whether they divide the rows of hidden states too."""
        return bool(schemes[self.plan.scheme].row_axes) and self.devices > 1

    def keep(self, x: Value, name: str) -> Value:
        if name not in self.plan.kept_by_name:
            return x
        return self.operation(x.shape, [x], kept=True, offloaded=name in self.plan.offloaded, view=True)

    def to_tensor_parallel(self, x: Value) -> Value:
        if self.devices == 1:
            return x
        if not self.shards_rows:
            nbytes = x.nbytes
            return self.operation(x.shape, [x], None, lambda: self._sum(nbytes), kind=MOVE, view=True)
        whole = (x.shape[0], x.shape[1] * self.devices, *x.shape[2:])
        nbytes = x.nbytes * self.devices
        return self.operation(
            whole,
            [x],
            lambda: self._part("all-gather", nbytes),
            lambda: self._part("reduce-scatter", nbytes),
            kind=MOVE,
        )

    def from_tensor_parallel(self, x: Value) -> Value:
        if self.devices == 1:
            return x
        nbytes = x.nbytes
        if not self.shards_rows:
            return self.operation(x.shape, [x], lambda: self._sum(nbytes), None, kind=SUM, in_place=True)
        part = (x.shape[0], x.shape[1] / self.devices, *x.shape[2:])
        return self.operation(
            part,
            [x],
            lambda: self._part("reduce-scatter", nbytes),
            lambda: self._part("all-gather", nbytes),
            kind=SUM,
        )

    def _sum(self, nbytes: float) -> None:
        self.clock.send("all-reduce", HEAD_AXES, 2 * share_sent(self.plan, HEAD_AXES) * nbytes)

    def _part(self, opcode: str, nbytes: float) -> None:
        self.clock.send(opcode, HEAD_AXES, share_sent(self.plan, HEAD_AXES) * nbytes)

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

    @property
    def keeps_everything(self) -> bool:
        return self.keeps is not None and OTHER in self.keeps

    def elementwise(
        self, x: Value, *others: Value, needs: bool = True, itemsize: int | None = None, nbytes: float | None = None
    ) -> Value:
        """The result of an operation on elements, in the shape of x, whose gradients may need its inputs."""
        inputs = (x, *others)
        return self.operation(
            x.shape, inputs, needs=inputs if needs else (), itemsize=itemsize, nbytes=nbytes, in_place=True
        )

    def add(self, x: Value, y: Value) -> Value:
        return self.elementwise(x, y, needs=False)

    def scale(self, x: Value, factor: float) -> Value:
        return self.elementwise(x, needs=False)

    def norm(self, x: Value, scale: Value | None = None, factor: float = 1.0, epsilon: float = NORM_EPSILON) -> Value:
        unit = self._unit(x)
        return unit if scale is None else self.elementwise(unit, scale)

    def layer_norm(self, x: Value, scale: Value | None, bias: Value | None, epsilon: float) -> Value:
        unit = self.norm(x, scale)
        return unit if bias is None else self.add_bias(unit, bias)

    def _unit(self, x: Value, *others: Value) -> Value:
        """x / rms, whose gradients need it and 2 x in float32; for GPUs XLA also keeps x so."""
        return self.elementwise(x, *others, nbytes=self._kept_wide(x, 2 + self.arrays.wide_gathers))

    def norm_over_heads(self, x: Value, scale: Value, epsilon: float = NORM_EPSILON) -> Value:
        batch, _, rows, _ = x.shape
        total = (batch, 1, rows, 1)

        def send() -> None:  # the sum of squares, and its gradient
            if self.devices > 1:
                self._sum(math.prod(total) * FLOAT32)

        squares = self.operation(total, [x], send, send, needs=[x], kind=SUM, itemsize=FLOAT32)
        return self.elementwise(self._unit(x, squares), scale)

    def rotate(self, x: Value, turn: Any, factor: float = 1.0) -> Value:
        return self.elementwise(x, needs=False, nbytes=self._kept_wide(x, self.arrays.wide_gathers) or None)

    def _kept_wide(self, x: Value, arrays: int) -> float:
        """The bytes of arrays of the shape of x in float32 where everything is kept, else 0."""
        return arrays * math.prod(x.shape) * FLOAT32 * self.keeps_everything

    def add_bias(self, x: Value, bias: Value) -> Value:
        return self.elementwise(x, bias, needs=False)

    def add_scaled(self, x: Value, values: Value, scale: Value) -> Value:
        return self.operation(x.shape, [x, values, scale], needs=[values, scale])

    def activate(self, activation: str, x: Value, up: Value | None = None) -> Value:
        return self.elementwise(x, *([] if up is None else [up]))

    def embed(self, table: Value, tokens: Value) -> Value:
        cols, whole = table.shape[1], table.slot.nbytes
        found = self.operation((*tokens.shape, cols), [table], None, lambda: self._embedding_gradient(whole))
        if self.devices == 1:
            return found
        if self.shards_rows:
            (batch, rows), nbytes = tokens.shape, found.nbytes

            def exchange() -> None:
                self.clock.send("all-to-all", HEAD_AXES, share_sent(self.plan, HEAD_AXES) * nbytes)

            return self.operation((batch, rows / self.devices, cols * self.devices), [found], exchange, exchange)
        nbytes = found.nbytes * self.devices
        shape = (*tokens.shape, cols * self.devices)
        return self.operation(shape, [found], lambda: self._part("all-gather", nbytes))

    def _embedding_gradient(self, nbytes: float) -> None:
        """The arrays of the size of an embedding's gradient while the gradient is made."""
        self.ledger.beside(GRADIENTS, (1 + self.arrays.second_sums) * nbytes)

    def embed_parts(self, table: Value, tokens: Value) -> Value:
        whole = table.slot.nbytes
        part = self.operation(
            (*tokens.shape, table.shape[1]), [table], None, lambda: self._embedding_gradient(whole), kind=OTHER
        )
        return self.from_tensor_parallel(part)

    def cross_entropy(self, logits: Value, targets: Value) -> Value:
        each = math.prod(targets.shape) * FLOAT32  # of a number for every target

        def total() -> None:  # the largest logit, and the sum of exponentials
            self._sum(each)
            self._sum(each)

        forward = (total, lambda: self._sum(each)) if self.devices > 1 else (None, None)
        exponentials, score = (
            self.operation(targets.shape, [logits], run, kind=SUM, itemsize=FLOAT32) for run in forward
        )
        return self.operation((), [exponentials, score], needs=(logits, exponentials), itemsize=FLOAT32)

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
        return self.operation((batch, heads, rows, size), inputs, view=True)

    def pack(self, arrays: Sequence[Value]) -> Value:
        batch = arrays[0].shape[0]
        return self.operation((batch, sum(math.prod(each.shape) / batch for each in arrays)), arrays, view=True)

    def unpack(self, packed: Value, like: Sequence[Value]) -> Sequence[Value]:
        return [self.operation(each.shape, [packed], view=True) for each in like]

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
            self.add_gradient(x.slot)
            before = set(self.gradients)
            with self.clock.repeated(chunks):
                self.transpose(self.record(of_chunk, keeps=()))
            for name in self.gradients.keys() - before - {each.name for each in gathered.values()}:
                del self.gradients[name]

        inputs = (x, *gathered.values())
        return self.operation(() if targets else x.shape, inputs, forward, backward, needs=inputs)

    def attend(self, times: LayerAttention, value_dim: float, q: Value, *others: Value) -> Value:
        """The output of attention, whose times are known."""
        peak, held, residual = times.memory
        given = q.nbytes + sum(each.nbytes for each in others)
        shape = (*q.shape[:-1], value_dim)
        output = math.prod(shape) * self.itemsize

        def backward() -> None:
            if times.moves:
                self.clock.attend(times.moves)
            self.clock.attend(times.backward)
            self.ledger.beside(ATTENTION, np.maximum(0, peak - given - 2 * output))

        forward = times.again if self.keeps is not None and times.again else times.forward
        return self.operation(
            shape,
            [q, *others],
            lambda: self.clock.attend(forward),
            backward,
            needs=[q, *others],
            kept=not times.again,
            offloaded=Kept.CONTEXT in self.plan.offloaded,
            nbytes=max(output, held - given if self.keeps_everything else 0) + residual,
            needs_result=True,
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
        # A parameter that is not gathered is a part of the parameters in the dtype of the step.
        nbytes = math.prod(shape) * self.gathered_bytes if how.stored or not self.arrays.narrow_copies else 0
        kind, summed = MOVE if parameter.added else GATHER, scatter if first else None
        return self.operation(shape, [], gather, summed, kind=kind, part=GATHERED, nbytes=nbytes)


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
