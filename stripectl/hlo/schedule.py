"""Facts of a scheduled program other than its bytes: work scheduled during a collective, copies, and cycles of tiles.

The scopes of `core.scopes` identify the kernel's loops and the parts of a training step. An instruction that the
compiler adds has no scope and takes the scope of the loop around it.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stripectl.core.scopes import ATTEND, ATTENTION, KINDS_OF_TILES, SECTIONS
from stripectl.hlo.async_ops import CONTAINERS, MATMULS, collectives_inside, spans
from stripectl.hlo.module import Collective, Instruction, Module, located_collectives
from stripectl.hlo.replica_groups import axis_of
from stripectl.results.compiled_program import LoopCopies, ScheduledCollective

CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
BRANCH = "branch"
SECTION = re.compile(rf"\b({'|'.join(SECTIONS)})\b")
AGAIN = "rematted_computation"  # jax.checkpoint's name for a forward pass inside the backward pass
PART = re.compile("|".join(KINDS_OF_TILES))
LARGE_BYTES = 2**20  # smaller copies are bookkeeping
ALLOCATES = 'custom_call_target="AllocateBuffer"'  # a call without cost


def pass_of(scope: str) -> str | None:
    """The pass that a scope names, or None."""
    return None if not scope else "backward" if "transpose(" in scope and AGAIN not in scope else "forward"


def section_of(scope: str) -> str | None:
    """The part of a training step that contains a scope, the innermost."""
    found = SECTION.findall(scope)
    return found[-1] if found else None


def part_of(scope: str) -> str | None:
    """The innermost part of the kernel that contains a scope."""
    found = PART.findall(scope)
    return KINDS_OF_TILES[found[-1]] if found else None


def computes(instruction: Instruction) -> bool:
    """Whether it computes tiles: a loop or a call of the kernel, or a tile whose loop the compiler has removed."""
    if instruction.opcode == "fusion":
        return part_of(instruction.scope) in ("whole", "boundary")
    runs = instruction.opcode in ("while", "custom-call", "conditional") and ALLOCATES not in instruction.rest
    return runs and ATTEND in instruction.scope


@dataclass(frozen=True)
class CollectiveWindow:
    """The schedule of a collective: whether it is split into a start and a done, and whether tiles, or any work that
    takes time, is computed between the two."""

    asynchronous: bool
    beside_tiles: bool
    beside_work: bool


IN_KERNEL = CollectiveWindow(True, True, True)  # of a hop that a kernel sends while it computes tiles


def windows(module: Module) -> dict[str, CollectiveWindow]:
    """The schedule of every collective, by the instruction's name. Where a collective ends in another computation, the
    work during it is not visible."""
    return {
        collective.name: CollectiveWindow(
            not span.blocks, any(map(computes, span.between)), any(works(module, each) for each in span.between)
        )
        for lines in module.computations.values()
        for span in spans(module, lines).values()
        for collective in span.sent
    }


def works(module: Module, line: Instruction) -> bool:
    """Whether it is work that can hide a transfer."""
    runs = line.opcode in ("fusion", "custom-call", *MATMULS, *CONTAINERS) and ALLOCATES not in line.rest
    return runs and not collectives_inside(module, line)


def scheduled_collectives(
    module: Module, axes: Mapping[str, int]
) -> tuple[list[Collective], list[ScheduledCollective]]:
    """(every collective, equal collectives with their schedule), on a mesh with these axes.

    Raises:
        StripectlError: a loop around a collective has an unknown length.
    """
    how = windows(module)
    synchronous = CollectiveWindow(False, False, False)
    counted: Counter[tuple[Any, ...]] = Counter()

    def tell(line: Instruction, callers: Sequence[Instruction]) -> tuple[Any, ...]:
        section = section_of(line.scope) or section_around(callers)
        if line.hop:
            return section, line.hop.axis, line.hop.passes, IN_KERNEL
        return section, axis_of(line.rest, axes), pass_of(line.scope) or "forward", how.get(line.name, synchronous)

    every = located_collectives(module, tell)
    for each, (section, axis, passes, window) in every:
        counted[section, axis, each.opcode, passes, each.dtype, each.sent_bytes, window] += each.times
    alike = [
        ScheduledCollective(
            section=section,
            axis=axis,
            opcode=opcode,
            passes=passes,
            dtype=dtype,
            sent_bytes=sent_bytes,
            times=times,
            asynchronous=how.asynchronous,
            beside_tiles=how.beside_tiles,
            beside_work=how.beside_work,
        )
        for (section, axis, opcode, passes, dtype, sent_bytes, how), times in counted.items()
    ]
    return [each for each, _ in every], alike


@dataclass
class Cycles:
    """Cycles that the compiler estimates for one pass: of a tile of each kind and a row of tiles, for one head; of the
    branches that run only for a live rectangle, all of them together; and of everything else together (`other`: the
    loops' own work, copies, merging, the rest of the program)."""

    whole: float = 0.0
    boundary: float = 0.0
    row: float = 0.0
    branch: float = 0.0
    other: float = 0.0
    bodies: Counter[str] = field(default_factory=Counter)

    def add(self, part: str, cycles: float) -> None:
        """Add a loop body of a kind; programs hold several copies of the kernel, and their mean is taken."""
        self.bodies[part] += 1
        setattr(self, part, getattr(self, part) + (cycles - getattr(self, part)) / self.bodies[part])

    def shared(self, runs: int) -> dict[str, float]:
        """The cycles by name; sums are divided by `runs`, the number of runs of the pass."""
        each = {name: getattr(self, name) for name in ("whole", "boundary", "row")}
        return each | {name: getattr(self, name) / runs for name in ("branch", "other")}


def cycles(module: Module, step: bool) -> tuple[dict[str, Cycles] | None, dict[str, float]]:
    """(estimated cycles of attention by pass, without tiles where a Pallas kernel computes them, None where the
    compiler estimates nothing, as for GPUs; cycles of all other parts of a training step together).

    In a step, a pass of attention covers all layers.
    """
    found, beside = {"forward": Cycles(), "backward": Cycles()}, Counter[str]()
    for name, times, callers in module.reached(costliest_callees(module)):
        lines, (part, passes) = module.computations[name], scope_of_callers(callers)
        if step:
            own = [(section_of(line.scope) or section_around(callers) or "other", line) for line in lines]
            lines = [line for section, line in own if section == ATTENTION]
            for section, line in own:
                beside[section] += own_cycles([line]) * times * (section != ATTENTION)
        if part == BRANCH:
            found[passes].branch += own_cycles(lines) * times
            continue
        if part:
            found[passes].add(part, own_cycles(lines))
            continue
        for line in lines:
            found[pass_of(line.scope) or passes].other += own_cycles([line]) * times
    known = {passes: each for passes, each in found.items() if each.bodies or each.other} or None
    return known, {section: float(count) for section, count in beside.items() if count}


def section_around(callers: Sequence[Instruction]) -> str | None:
    """The part of a training step that contains the end of a path of calls."""
    known = (section_of(line.scope) for line in reversed(callers))
    return next((section for section in known if section), None)


def own_cycles(lines: Sequence[Instruction]) -> int:
    """Cycles of instructions, without the computations that they call."""
    return sum(int(known[1]) for line in lines if (known := CYCLES.search(line.rest)))


def costliest_callees(module: Module) -> Callable[[Instruction], list[str]]:
    """The computations that an instruction enters: loops, calls, and the most expensive of its branches, as one
    runs."""

    def enter(line: Instruction) -> list[str]:
        if line.opcode == "conditional":
            return [max(line.called, key=lambda branch: own_cycles(module.computations[branch]))]
        return line.called if line.opcode in ("while", "call") else []

    return enter


def scope_of_callers(callers: Sequence[Instruction]) -> tuple[str | None, str]:
    """(the kernel's part or None, the pass) at the end of a path of calls; a branch that is in no part is one
    itself."""
    part, passes = None, "forward"
    for line in callers:
        part = part_of(line.scope) or part or (BRANCH if line.opcode == "conditional" else None)
        passes = pass_of(line.scope) or passes
    return part, passes


def copies(module: Module, step: bool) -> LoopCopies:
    """Copies of whole arrays in the ring's loops: their number per round, and the bytes that each round moves."""
    rounds = [
        name
        for name, times, callers in module.reached()
        if times > 1 and module.communicates[name] and (not step or section_around(callers[-1:]) == ATTENTION)
    ]
    found = [
        line.nbytes
        for name in dict.fromkeys(rounds)
        for line in module.computations[name]
        if line.opcode == "copy" and line.nbytes >= LARGE_BYTES
    ]
    return LoopCopies(per_round=len(found), bytes_per_round=sum(found))
