"""Where a compiled program begins and ends its transfers: blocking collectives, starts and dones, and the chains of
fusions by which TPUs continue a transfer during other work. Opcodes and the content of fusions decide, never names.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from stripectl.hlo.module import CHAIN_START, CHAINED, OPCODES, OPERAND, Instruction, Module

CHAIN_DONE = 'custom_call_target="AsyncCollectiveDone"'
PEERS = ("send", "recv", "collective-broadcast", "ragged-all-to-all")
CONTAINERS = ("while", "conditional", "call")
MATMULS = ("dot", "convolution")


class Span(NamedTuple):
    """A transfer in one computation. An asynchronous transfer runs from its start to its done, `end`, which is empty
    where the done is not in this computation; `between` are the instructions scheduled in that time."""

    sent: tuple[Instruction, ...]  # its collectives: the instruction itself, or the instructions in it
    blocks: bool
    end: str
    between: tuple[Instruction, ...]


def base(opcode: str) -> str:
    """The opcode of a whole operation, from the opcode of its start or done."""
    return opcode.removesuffix("-start").removesuffix("-done").removesuffix("-update")


def instructions_inside(module: Module, instruction: Instruction) -> list[Instruction]:
    """The instructions in a fusion or an asynchronous call, and in fusions inside it."""
    found = []
    for name in instruction.called:
        for line in module.computations.get(name, ()):
            found += [line, *instructions_inside(module, line)]
    return found


def collectives_inside(module: Module, instruction: Instruction) -> tuple[Instruction, ...]:
    """The collectives that an instruction is or contains; those in loops and calls belong to other computations."""
    if instruction.opcode in CONTAINERS:
        return ()
    lines = [instruction, *instructions_inside(module, instruction)]
    return tuple(line for line in lines if base(line.opcode) in (*OPCODES, *PEERS))


def predecessors(lines: Sequence[Instruction]) -> dict[str, list[str]]:
    """The instructions of the same computation that each instruction reads or waits for."""
    names = {line.name for line in lines}
    return {line.name: [name for name in OPERAND.findall(line.rest) if name in names] for line in lines}


def spans(module: Module, lines: Sequence[Instruction]) -> dict[str, Span]:
    """The transfers of a computation, by the instruction that begins them."""
    at = {line.name: index for index, line in enumerate(lines)}
    held = {line.name: (line, collectives_inside(module, line), instructions_inside(module, line)) for line in lines}
    moves = {name: collectives for name, (_, collectives, _) in held.items() if collectives}
    used = predecessors(lines)
    begun = {name for name, (line, _, within) in held.items() if name in moves and _begins(line, within)}
    ended = {name for name, (line, _, within) in held.items() if _ends(line, within)}
    carried = {
        name
        for name, (line, _, within) in held.items()
        if line.opcode.endswith("-update") or (name not in begun and any(CHAINED in each.rest for each in within))
    }
    ends = {start: name for name in ended if (start := _origin(name, used, begun, carried | moves.keys()))}
    found = {}
    for name in moves.keys() - ended - carried:
        end = ends.get(name, "")
        found[name] = Span(moves[name], name not in begun, end, tuple(lines[at[name] + 1 : at.get(end, 0)]))
    return found


def _begins(line: Instruction, within: Sequence[Instruction]) -> bool:
    chain = any(CHAIN_START in each.rest for each in within)
    return chain or line.opcode in ("send", "recv") or line.opcode.endswith("-start")


def _ends(line: Instruction, within: Sequence[Instruction]) -> bool:
    return line.opcode.endswith("-done") or any(CHAIN_DONE in each.rest for each in within)


def _origin(name: str, used: Mapping[str, Sequence[str]], begun: set[str], through: set[str]) -> str:
    """The start that an end belongs to, followed through the fusions between; empty where it is not here."""
    for operand in used[name]:
        if operand in begun:
            return operand
        if operand in through and (found := _origin(operand, used, begun, through)):
            return found
    return ""
