"""What each operation of a compiled program is: the part of a step that it belongs to, its kind, its FLOPs, and the
bytes that it reads and writes in memory. FLOPs that the text of a program does not tell, such as those of a library's
attention, are 0.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from stripectl.core.scopes import NORM, ROTARY
from stripectl.hlo.async_ops import CONTAINERS, MATMULS
from stripectl.hlo.module import CONDITION, SHAPE, Instruction, Module, size_bytes
from stripectl.hlo.schedule import AGAIN, pass_of, section_around, section_of
from stripectl.profiling.program import NO_WORK

BESIDE = "other"  # the part of an operation that no part of a step contains
MATRICES, KERNEL, ELEMENTWISE, COPIES = "matrices", "kernel", "element-wise", "copies and casts"
REDUCTIONS, GATHERS = "reductions", "gather and scatter"
TARGET = re.compile(r'custom_call_target="([^"]+)"')
MULTIPLIES = re.compile(r"gemm|matmul|convolution|onednn\$dot")  # in the target of a library's call
FUSED_MATMUL = re.compile(r'"kind":"__(?:triton(?:_nested)?_gemm(?:_fusion)?|cudnn\$fusion)"')
NAMED = re.compile(rf"(?:^|/|\()({NORM}|{ROTARY})(?=[/)]|$)")
CONTRACTED = re.compile(r'lhs_contracting_dim(?:s=\{|ensions":\[)([\d",]*)')
SLICES, UPDATES = ("dynamic-slice", "slice", "gather"), ("dynamic-update-slice", "scatter")
MOVES = (
    *("convert", "copy", "transpose", "bitcast", "bitcast-convert", "broadcast", "reshape", "concatenate", "pad"),
    *("slice", "dynamic-slice", "dynamic-update-slice", "iota", "reverse", *NO_WORK),
)
INDICES = ("add", "compare", "select", "minimum", "maximum", "clamp", "multiply", "subtract")  # of a slice, on scalars


class Work(NamedTuple):
    """An operation each time that it runs; `dtype` is what it multiplies, empty where it multiplies no matrix."""

    part: str
    kind: str
    passes: str
    flops: float = 0.0
    dtype: str = ""
    nbytes: float = 0.0


def work_of(module: Module) -> dict[str, Work]:
    """The work of each operation that a profile can show, by name: those of the entry and of its loops and branches."""
    found: dict[str, Work] = {}
    for name, _, callers in module.reached(entered):
        lines = module.computations[name]
        parts = parts_of(module, lines)
        by_name = {line.name: line for line in lines}
        for line in lines:
            inside = fused_lines(module, line)
            flops, dtype = flops_of(line, inside, by_name)
            found[line.name] = Work(
                parts[line.name] or section_around(callers) or BESIDE,
                kind_of_work(line, inside),
                "again" if AGAIN in line.scope else pass_of(line.scope) or "forward",
                flops,
                dtype,
                bytes_of_operation(module, line, [by_name[each] for each in line.operands]),
            )
    return found


def entered(line: Instruction) -> list[str]:
    """The computations whose operations a profile shows: of a loop its body and its condition."""
    return [*line.called, *CONDITION.findall(line.rest)] if line.opcode in CONTAINERS else []


def fused_lines(module: Module, line: Instruction) -> list[Instruction]:
    """The instructions that a fusion, or an asynchronous call, computes. Reductions share the function that they apply,
    so it tells nothing."""
    if line.opcode in CONTAINERS:
        return []
    found = []
    for name in line.called if "to_apply=" not in line.rest else ():
        for each in module.computations.get(name, ()):
            found += [each, *fused_lines(module, each)]
    return found


def parts_of(module: Module, lines: Sequence[Instruction]) -> dict[str, str | None]:
    """The part of a step of each instruction: its own, that of what it fuses, or of the first instruction that reads
    it, because the compiler names no part of an instruction that it adds."""
    readers: dict[str, list[str]] = {}
    for line in lines:
        for name in line.operands:
            readers.setdefault(name, []).append(line.name)
    found: dict[str, str | None] = {}
    for line in reversed(lines):
        fused = Counter(filter(None, (section_of(each.scope) for each in fused_lines(module, line))))
        read = (found[name] for name in readers.get(line.name, ()) if found.get(name))
        own = section_of(line.scope) or next(iter(dict(fused.most_common(1))), None)
        found[line.name] = own or next(read, None)
    return found


def kind_of_work(line: Instruction, inside: Sequence[Instruction]) -> str:
    """The kind of an operation: what takes its time first, then the name that the model gives it."""
    opcodes = {line.opcode, *(each.opcode for each in inside)}
    targets = [found[1] for each in (line, *inside) if (found := TARGET.search(each.rest))]
    if opcodes & {*MATMULS} or any(map(MULTIPLIES.search, targets)) or FUSED_MATMUL.search(line.rest):
        return MATRICES
    if targets:
        return KERNEL
    if opcodes & {"gather", "scatter"}:
        return GATHERS
    if named := NAMED.findall(line.scope) or [one for each in inside for one in NAMED.findall(each.scope)]:
        return named[-1]
    scalars = {each.opcode for each in inside if each.opcode in INDICES and not elements(each.result)}
    work = opcodes - {*MOVES} - {"fusion"}
    if work <= scalars:
        return COPIES
    return REDUCTIONS if "reduce" in work else ELEMENTWISE


def elements(result: str) -> bool:
    """Whether a result is more than a scalar."""
    return any(sizes for _, sizes in SHAPE.findall(result))


def flops_of(line: Instruction, inside: Sequence[Instruction], by_name: Mapping[str, Instruction]) -> tuple[float, str]:
    """(FLOPs of an operation's matrices, the dtype that they multiply: the widest of their operands)."""
    names = {each.name: each for each in inside} | dict(by_name)
    total, dtype = 0.0, ""
    for each in (line, *inside):
        contracted = CONTRACTED.search(each.rest)
        if not contracted or not (given := [names[name] for name in each.operands if name in names]):
            continue
        shapes = [SHAPE.findall(one.result)[0] for one in given[:2]]
        sizes = [int(size) for size in shapes[0][1].split(",") if size]
        inner = math.prod(sizes[int(at)] for at in re.findall(r"\d+", contracted[1]))
        results = SHAPE.findall(each.result)
        total += 2.0 * inner * math.prod(int(size) for size in results[0][1].split(",") if size)
        dtype = max((kind for kind, _ in shapes), key=lambda kind: size_bytes(kind, ""))
    return total, dtype


def bytes_of_operation(module: Module, line: Instruction, given: Sequence[Instruction]) -> float:
    """The bytes that an operation reads and writes: of a slice its result, of an update in place what it changes; the
    workspace of a library (s8) is not counted."""
    if line.opcode in (*NO_WORK, *CONTAINERS):
        return 0.0
    if line.opcode != "fusion":
        if line.opcode in SLICES:
            return 2.0 * line.nbytes
        if line.opcode in UPDATES:
            return 2.0 * sum(each.nbytes for each in given[1:2])
        results = SHAPE.findall(line.result)
        return float(sum(each.nbytes for each in given) + sum(size_bytes(*each) for each in results if each[0] != "s8"))
    fused = module.computations.get(line.called[0], []) if line.called else []
    read = sum(bytes_read(fused, at, each) for at, each in enumerate(given))
    return float(read + bytes_written(fused, line))


def bytes_read(fused: Sequence[Instruction], at: int, given: Instruction) -> int:
    """What a fusion reads of an operand: all of it, its slices, or nothing where it only updates it in place."""
    sources = {line.name for line in fused if line.opcode == "parameter" and line.rest.startswith(f"{at})")}
    readers = list(reading(fused, sources))
    if readers and all(line.opcode in SLICES for line in readers):
        return sum(line.nbytes for line in readers)
    updated = [line for line in readers if line.opcode in UPDATES and line.operands[0] in through(fused, sources)]
    return 0 if readers and len(updated) == len(readers) else given.nbytes


def through(fused: Sequence[Instruction], names: Iterable[str]) -> set[str]:
    """The names with those of their bitcasts."""
    found = set(names)
    for line in fused:
        if line.opcode == "bitcast" and found & {*line.operands}:
            found.add(line.name)
    return found


def reading(fused: Sequence[Instruction], names: Iterable[str]) -> Iterable[Instruction]:
    """The instructions that read arrays, bitcasts aside."""
    sources = through(fused, names)
    return (line for line in fused if line.opcode != "bitcast" and sources & {*line.operands})


def bytes_written(fused: Sequence[Instruction], line: Instruction) -> int:
    """What a fusion writes: its results; of an update in place only what changes, a sum (scatter) after it was read."""
    sizes = {each.name: each.nbytes for each in fused}
    updates = [each for each in fused if each.opcode in UPDATES]
    if not updates:
        return line.nbytes
    return sum(
        sizes.get(each.operands[-1 if each.opcode == "scatter" else 1], 0) * (1 + (each.opcode == "scatter"))
        for each in updates
    )
