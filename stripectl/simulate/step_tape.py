"""A tape of the operations of layers on a clock, with what the backward pass repeats, and the memory of their results.

A program runs in one of three ways. *Without a tape* its operations run at once, and nothing else happens: the forward
pass of a layer whose values are not kept. *Recorded*, they run at once, and all values are kept. *Replayed*, in the
backward pass of a layer, each operation whose result `remat` did not keep waits until another operation needs it, so
that nothing is computed again without need, as in `jax.checkpoint`. The backward pass then runs the recorded operations
in reverse order: each one first makes the values that its gradients need.

An array counts in memory from when it is made until nothing refers to it any more, as in `simulate.memory`.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from stripectl.core.scopes import ATTENTION, HEAD
from stripectl.core.workload import DTYPE_BYTES
from stripectl.simulate.compiler_arrays import CompilerArrays
from stripectl.simulate.part_ledger import PartAllocation, PartLedger
from stripectl.simulate.step_clock import TO_HOST, Seconds, StepClock

FLOAT32 = DTYPE_BYTES["float32"]
# Kinds of operations, as `training.sharding.POLICIES` tells them apart.
MOVE, MATRIX, SUM, OTHER = "move", "matrix", "sum", "other"
GATHER = "gather"  # of a parameter: never kept
# Parts of memory.
ACTIVATIONS, GATHERED, GRADIENTS, LOGITS = "activations", "gathered parameters", "gradients", "logits"
KEEPS = {"dots": (MATRIX, SUM), "none": (MATRIX, SUM, OTHER)}  # other values of `remat` keep named values only


class Slot(NamedTuple):
    """The gradient of a value: the value's name, the gradient's bytes, and the part of memory."""

    name: int
    nbytes: float
    part: str


@dataclass(eq=False)
class Value:
    """An array of one device: its shape, bytes per element, when it is there, and how it is made if it is not yet; its
    memory is None before, and where another array's memory has it."""

    shape: tuple[float, ...]
    itemsize: int
    part: str = ACTIVATIONS
    ready: Seconds = 0.0
    make: Callable[["Value"], None] | None = None
    memory: PartAllocation | None = None
    name: int = field(default_factory=itertools.count().__next__)

    @property
    def nbytes(self) -> float:
        return math.prod(self.shape) * self.itemsize

    @property
    def slot(self) -> Slot:
        if self.part == GATHERED:
            return Slot(self.name, math.prod(self.shape) * FLOAT32, GRADIENTS)
        return Slot(self.name, self.nbytes, self.part)


class Operation(NamedTuple):
    """A recorded operation: its part of the step, its result, the inputs that have gradients, the values that these
    need, and their computation. `in_place` gradients take the memory of the result's gradient."""

    section: str
    out: Slot
    inputs: Sequence[Slot]
    needs: Sequence[Value]
    backward: Callable[[], Any] | None
    in_place: bool


class Tape(NamedTuple):
    """The recorded operations of a program, the parameters whose gathers a replayed program has not begun, and the
    bytes of its values that wait in the host's memory."""

    operations: list[Operation]
    gathers: list[Value]
    offloaded: list[float]


@dataclass
class Recorder:
    """Operations on a clock, run or recorded, whose results have elements of `itemsize` bytes."""

    clock: StepClock
    itemsize: int
    arrays: CompilerArrays
    tape: Tape | None = None
    keeps: Sequence[str] | None = None  # kinds whose values were kept, in a program that is replayed
    gradients: dict[int, PartAllocation | None] = field(
        default_factory=dict[int, PartAllocation | None]
    )  # by name of the value

    @property
    def ledger(self) -> PartLedger:
        return self.clock.ledger

    @contextmanager
    def section(self, name: str) -> Iterator[None]:
        before, self.clock.section = self.clock.section, name
        yield
        self.clock.section = before

    def value(self, shape: tuple[float, ...], itemsize: int | None = None, part: str | None = None) -> Value:
        """A value that is not made yet."""
        if part is None:
            own = self.clock.section
            part = own if own == ATTENTION else LOGITS if own == HEAD and itemsize == FLOAT32 else ACTIVATIONS
        return Value(shape, itemsize or self.itemsize, part)

    def input(self, shape: tuple[float, ...]) -> Value:
        """Hidden states that are there."""
        out = self.value(shape)
        out.memory = self.ledger.hold(out.part, out.nbytes)
        return out

    def record(self, program: Callable[[], Value], keeps: Sequence[str] | None = None) -> Tape:
        """The operations of a program that runs now, or is replayed where only values of some kinds were kept."""
        before, self.tape, self.keeps = (self.tape, self.keeps), Tape([], [], []), keeps
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

    def transpose(self, tape: Tape) -> None:
        """The backward pass of recorded operations, which it takes from the tape. Where parameters travel while
        matrices run, all their gathers are under way before the first operation needs one, and gradients are in memory
        until the program ends."""
        if self.arrays.overlapped:
            self.make(*tape.gathers, waits=False)
        tape.gathers.clear()
        self.add_gradient(tape.operations[-1].out)  # of the program's result
        scattered = list[PartAllocation | None]()
        while tape.operations:
            each = tape.operations.pop()
            own = self.gradients.pop(each.out.name, None)
            with self.section(each.section):
                self.make(*each.needs)
                if each.backward:
                    each.backward()
                if each.in_place:
                    own = None
                if each.out.part == GRADIENTS and self.arrays.overlapped:
                    scattered.append(own)
                for slot in each.inputs:
                    self.add_gradient(slot)
            del own, each

    def add_gradient(self, slot: Slot) -> None:
        """Add to the gradient of a value, which takes memory from its first part on."""
        if slot.name not in self.gradients:
            self.gradients[slot.name] = self.ledger.hold(slot.part, slot.nbytes) if slot.nbytes else None

    def make(self, *values: Value, waits: bool = True) -> None:
        """Compute values that do not exist yet, and wait until all are there."""
        for each in values:
            if make := each.make:
                each.make = None
                make(each)
            if waits:
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
        offloaded: bool = False,
        itemsize: int | None = None,
        nbytes: float | None = None,
        part: str | None = None,
        view: bool = False,
        in_place: bool = False,
        needs_result: bool = False,
    ) -> Value:
        """The result of an operation. `forward` returns when the result is there if that is later than now. The result
        is kept if values of its `kind` are, unless `kept` says so. An `offloaded` result waits in the host's memory;
        its copy back began with the program (`StepPasses.backward`). It takes `nbytes` of memory where that is more
        than the array; a `view` takes none."""
        out, section = self.value(shape, itemsize, part), self.clock.section
        size = out.nbytes if nbytes is None else nbytes
        if self.tape is not None:
            own = [each.slot for each in inputs]
            needs = [*needs, out] if needs_result else needs
            self.tape.operations.append(Operation(section, out.slot, own, needs, backward, in_place or view))

        def make(out: Value) -> None:  # without a reference to it, so that it leaves memory with its last user
            self.make(*inputs)
            out.memory = inputs[0].memory if view and inputs else self.ledger.hold(out.part, size) if size else None
            with self.section(section):
                ready = forward and forward()
                out.ready = 0.0 if ready is None else ready

        def fetch(out: Value) -> None:
            out.memory = self.ledger.hold(ACTIVATIONS, size)

        if self.keeps is None:
            make(out)
            if offloaded:
                self.clock.copy(TO_HOST, size)
        elif offloaded and self.tape:
            self.tape.offloaded.append(size)
            out.make = fetch
        elif kind in self.keeps if kept is None else kept:
            shared = inputs[0].memory if view and inputs else None
            out.memory = shared or self.ledger.hold(ACTIVATIONS, size)
        else:
            out.make = make
            if kind == GATHER and self.tape:
                self.tape.gathers.append(out)
        return out
