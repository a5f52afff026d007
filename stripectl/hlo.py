"""Collectives of a compiled program, read from its HLO text: what each device really sends.

Compilers rewrite what a program says. The rewrites seen so far, which make HLO bytes differ from the program's:

- merged rotation: where the ring's loops are unrolled, the backward pass's rotation of K/V is the forward's, and one
  of the two is dropped;
- widening: a CPU sends bfloat16 as float32.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

from stripectl import StripectlError

OPCODES = ("collective-permute", "all-gather", "reduce-scatter", "all-to-all", "all-reduce")
ITEM_BYTES = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "s32": 4, "u32": 4, "f32": 4, "s64": 8, "f64": 8}

COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
COLLECTIVE = re.compile(rf"= (.*?) ({'|'.join(OPCODES)})(-start)?\(")
SHAPE = re.compile(r"\b([a-z]+\d*)\[([\d,]*)\]")
WHILE = re.compile(r" while\(.*condition=%?([\w.\-]+), body=%?([\w.\-]+)")
TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
CALLED = re.compile(
    r"(?:calls|to_apply|true_computation|false_computation)=%?([\w.\-]+)|branch_computations=\{([^}]*)\}"
)
GROUP = re.compile(r"replica_groups=(?:\{\{([\d,]+)\}|\[\d+,(\d+)\])")
CONSTANT = re.compile(r"= s(?:32|64)\[\][^ ]* constant\((\d+)\)")


@dataclass(frozen=True)
class Collective:
    """A collective of the program: what a device sends each time, and how often it runs."""

    opcode: str
    dtype: str
    sent_bytes: int
    times: int


def collectives(text: str) -> list[Collective]:
    """Every collective reached from the program's entry, loops counted by their trips."""
    computations: dict[str, list[str]] = {}
    entry, lines = "", list[str]()
    for line in text.splitlines():
        if found := COMPUTATION.match(line):
            lines = computations[found[2]] = []
            entry = found[2] if found[1] else entry
        elif line.startswith("  "):
            lines.append(line)
    return list(_walk(computations, entry, 1))


def sent_bytes(found: list[Collective]) -> dict[str, int]:
    """Bytes a device sends, by opcode."""
    total: dict[str, int] = {}
    for each in found:
        total[each.opcode] = total.get(each.opcode, 0) + each.sent_bytes * each.times
    return total


def _walk(computations: dict[str, list[str]], name: str, times: int) -> Iterator[Collective]:
    for line in computations[name]:
        if loop := WHILE.search(line):
            inside = list(_walk(computations, loop[2], 1))
            trips = _trips(computations, line, loop[1]) if inside else 0
            yield from (Collective(c.opcode, c.dtype, c.sent_bytes, c.times * times * trips) for c in inside)
        elif found := COLLECTIVE.search(line):
            yield _collective(found[1], found[2], bool(found[3]), line, times)
        else:
            for called in CALLED.finditer(line):
                for each in (called[1] or called[2]).split(","):
                    yield from _walk(computations, each.strip().lstrip("%"), times)


def _trips(computations: dict[str, list[str]], line: str, condition: str) -> int:
    """How often a loop runs: the compiler's word, else the one constant of its condition."""
    if known := TRIPS.search(line):
        return int(known[1])
    constants = [int(found[1]) for inner in computations[condition] if (found := CONSTANT.search(inner))]
    if len(constants) != 1:
        raise StripectlError(f"the loop {condition} holds a collective and does not say how often it runs.")
    return constants[0]


def _collective(shapes: str, opcode: str, start: bool, line: str, times: int) -> Collective:
    """A collective from its results' shapes; an asynchronous one's start gives operands, results and scalar contexts,
    and several operands may have been combined into one collective."""
    arrays = [(dtype, sizes) for dtype, sizes in SHAPE.findall(shapes) if sizes or not start]
    if start and len(arrays) > 1:
        arrays = arrays[len(arrays) // 2 :]
    dtype = arrays[0][0]
    nbytes = sum(ITEM_BYTES[each] * math.prod(map(int, filter(None, sizes.split(",")))) for each, sizes in arrays)
    group = GROUP.search(line)
    devices = len(group[1].split(",")) if group and group[1] else int(group[2]) if group else 1
    factor = {
        "all-gather": (devices - 1) / devices,
        "reduce-scatter": devices - 1,
        "all-to-all": (devices - 1) / devices,
    }
    if opcode == "all-reduce":
        factor["all-reduce"] = 2 * (devices - 1) / devices
    return Collective(opcode, dtype, round(nbytes * factor.get(opcode, 1)), times)
