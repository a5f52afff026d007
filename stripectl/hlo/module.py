"""A compiled program's text as a tree: computations of instructions, the computations that they call, how often loops
run, and the collectives among them: the data that each device really sends.

The text is the schedule: inside a computation instructions run in the order in which they are printed.
"""

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from stripectl.core.scopes import HOP
from stripectl.errors import StripectlError
from stripectl.hlo.replica_groups import group_size

OPCODES = ("collective-permute", "all-gather", "reduce-scatter", "all-to-all", "all-reduce")
ITEM_BYTES = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "s32": 4, "u32": 4, "f32": 4, "s64": 8, "f64": 8}

COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = (.*?) ([a-z][\w\-]*)\((.*)$")
SHAPE = re.compile(r"\b([a-z]+\d*)\[([\d,]*)\]")
TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
CALLED = re.compile(r"(?:calls|to_apply|true_computation|false_computation|body)=%?([\w.\-]+)")
BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
CONDITION = re.compile(r"condition=%?([\w.\-]+)")
OPERAND = re.compile(r"%([\w.\-]+)")
CONSTANT = re.compile(r"constant\((\d+)\)")
CHAINED = 'chain_id="'
CHAIN_START = 'custom_call_target="AsyncCollectiveStart"'
SCOPE = re.compile(r'op_name="([^"]*)"')


class KernelHop(NamedTuple):
    """The transfer of a kernel with a hop: the last `arrays` arrays along an axis, one of several parts each time."""

    passes: str
    axis: str
    arrays: int
    parts: int


class Instruction(NamedTuple):
    """A line of a computation: `rest` holds operands and attributes."""

    name: str
    result: str
    opcode: str
    rest: str

    @property
    def scope(self) -> str:
        """Its place in the source program: jax.named_scope and the transformations around it."""
        found = SCOPE.search(self.rest)
        return found[1] if found else ""

    @property
    def called(self) -> list[str]:
        """Computations that run when it runs; for a loop only the body."""
        if self.opcode in OPCODES or self.opcode.removesuffix("-start") in OPCODES:
            return []  # the function that an all-reduce applies to each element
        names = CALLED.findall(self.rest)
        for branches in BRANCHES.findall(self.rest):
            names += [name.strip().lstrip("%") for name in branches.split(",")]
        return names

    @property
    def operands(self) -> list[str]:
        """The names of its operands, in order, without instructions that it only waits for."""
        depth, end = 1, 0
        for end, letter in enumerate(self.rest):  # noqa: B007
            depth += (letter == "(") - (letter == ")")
            if not depth:
                break
        return OPERAND.findall(self.rest[:end])

    @property
    def hop(self) -> KernelHop | None:
        found = self.opcode == "custom-call" and (HOP.search(self.name) or HOP.search(self.scope))
        return KernelHop(found[1], found[2], int(found[3]), int(found[4])) if found else None

    @property
    def nbytes(self) -> int:
        """The bytes of its result."""
        return sum(size_bytes(dtype, sizes) for dtype, sizes in SHAPE.findall(self.result))


class ReachedComputation(NamedTuple):
    """A computation on one path from the entry: how often it runs, and the instructions on the path."""

    name: str
    times: int
    callers: tuple[Instruction, ...]


class Collective(NamedTuple):
    """A collective of the program: what a device sends each time, and how often it runs."""

    opcode: str
    dtype: str
    sent_bytes: int
    times: int

    @property
    def elements(self) -> int:
        return self.sent_bytes // ITEM_BYTES[self.dtype]


def size_bytes(dtype: str, sizes: str) -> int:
    return ITEM_BYTES.get(dtype, 0) * math.prod(map(int, filter(None, sizes.split(","))))


@dataclass(frozen=True)
class Module:
    """A program: its computations by name, and the one it begins with."""

    entry: str
    computations: dict[str, list[Instruction]]

    def reached(
        self, enter: Callable[[Instruction], list[str]] = lambda line: line.called
    ) -> Iterator[ReachedComputation]:
        """Every path to a computation, the entry last; `enter` selects which called computations are followed. A loop
        of unknown length counts as one iteration."""

        def visit(at: ReachedComputation) -> Iterator[ReachedComputation]:
            for line in self.computations[at.name]:
                for called in enter(line):
                    yield from visit(
                        ReachedComputation(called, at.times * (self.trips(line) or 1), (*at.callers, line))
                    )
            yield at

        return visit(ReachedComputation(self.entry, 1, ()))

    def trips(self, instruction: Instruction) -> int | None:
        """How often a loop runs, from the compiler's text or the one constant of its condition; 1 for any other
        instruction, None for a loop of unknown length."""
        if instruction.opcode != "while":
            return 1
        if known := TRIPS.search(instruction.rest):
            return int(known[1])
        condition = CONDITION.search(instruction.rest)
        lines = self.computations[condition[1]] if condition else []
        constants = [int(found[1]) for line in lines if (found := CONSTANT.match(f"{line.opcode}({line.rest}"))]
        return constants[0] if len(constants) == 1 else None

    @cached_property
    def communicates(self) -> dict[str, bool]:
        """Whether a collective is reached from each computation."""
        known: dict[str, bool] = {}

        def find(name: str) -> bool:
            if name not in known:
                known[name] = False
                lines = self.computations[name]
                known[name] = any(is_collective(line) or any(map(find, line.called)) for line in lines)
            return known[name]

        for name in self.computations:
            find(name)
        return known


def has_entry(text: str) -> bool:
    """Whether a text can be a program."""
    return any((found := COMPUTATION.match(line)) and found[1] for line in text.splitlines())


def parse_module(text: str) -> Module:
    """The program that a compiler printed.

    Raises:
        StripectlError: the text has no entry computation.
    """
    computations: dict[str, list[Instruction]] = {}
    entry, lines = "", list[Instruction]()
    for line in text.splitlines():
        if found := COMPUTATION.match(line):
            lines = computations[found[2]] = []
            entry = found[2] if found[1] else entry
        elif line.startswith("  ") and (found := INSTRUCTION.match(line)):
            lines.append(Instruction(*found.groups()))
    if not entry:
        raise StripectlError("the compiler's text of the program has no entry, so it cannot be read.")
    return Module(entry, computations)


def is_collective(instruction: Instruction) -> bool:
    """Whether it is a collective, the start of one, or a kernel that sends a hop."""
    return instruction.opcode.removesuffix("-start") in OPCODES or instruction.hop is not None


def collectives(module: Module) -> list[Collective]:
    """Every collective that runs, one entry per array.

    Raises:
        StripectlError: a loop around a collective has an unknown length.
    """
    return [each for each, _ in located_collectives(module, lambda line, callers: None)]


def located_collectives(
    module: Module, tell: Callable[[Instruction, Sequence[Instruction]], Any]
) -> list[tuple[Collective, Any]]:
    """Every collective, with the result of `tell` for its instruction and the instructions on the path to it."""
    found: list[tuple[Collective, Any]] = []
    for name, times, callers in module.reached():
        lines = started_collectives(module.computations[name])
        if silent := [line.name for line in callers if lines and module.trips(line) is None]:
            raise StripectlError(f"the loop {silent[0]} holds a collective, but its number of iterations is unknown.")
        found += [(each, tell(line, callers)) for line in lines for each in _collective(line, times)]
    return found


def started_collectives(lines: Sequence[Instruction]) -> list[Instruction]:
    """The collectives that a computation begins. A TPU may print a collective several times, in a chain of fusions that
    start it, continue it during their own work, and end it; only the first begins it."""
    starts = any(CHAIN_START in line.rest for line in lines)
    return [line for line in lines if is_collective(line) and (starts or CHAINED not in line.rest)]


def sent_bytes_by_opcode(found: list[Collective]) -> dict[str, int]:
    """Bytes that a device sends, by opcode."""
    total: dict[str, int] = {}
    for each in found:
        total[each.opcode] = total.get(each.opcode, 0) + each.sent_bytes * each.times
    return total


def sent_bytes_of(instruction: Instruction) -> int:
    """Bytes that a device sends each time a collective runs; where they are unknown, the bytes of its result."""
    return sum(each.sent_bytes for each in _collective(instruction, 1))


def _collective(instruction: Instruction, times: int) -> Iterator[Collective]:
    """A collective's arrays from the shapes of its results. The start of an asynchronous collective has operands,
    results and scalar contexts, and the compiler may have combined several collectives. An all-to-all without a
    dimension has its one array in as many parts as there are devices."""
    if instruction.hop:
        for dtype, sizes in SHAPE.findall(instruction.result)[-instruction.hop.arrays :]:
            yield Collective("collective-permute", dtype, size_bytes(dtype, sizes), times // instruction.hop.parts)
        return
    opcode = instruction.opcode.removesuffix("-start")
    start = opcode != instruction.opcode
    arrays = [(dtype, sizes) for dtype, sizes in SHAPE.findall(instruction.result) if sizes or not start]
    if start and len(arrays) > 1:
        arrays = arrays[len(arrays) // 2 :]
    devices = group_size(instruction.rest)
    share = {
        "all-gather": (devices - 1) / devices,
        "reduce-scatter": devices - 1,
        "all-to-all": (devices - 1) / devices,
        "all-reduce": 2 * (devices - 1) / devices,
    }.get(opcode, 1)
    parts = devices if opcode == "all-to-all" and "dimensions=" not in instruction.rest else 1
    for dtype, sizes in arrays[::parts]:
        yield Collective(opcode, dtype, round(parts * size_bytes(dtype, sizes) * share), times)
