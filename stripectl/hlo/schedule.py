"""What a scheduled program says beyond its bytes: what runs beside a collective, copies, and the cycles of tiles.

The kernel's loops are known by the scopes that `execute` and the kernels open (`attend_forward`, `tile_row`,
`whole_tile`, `boundary_tile`), the parts of a training step by those that `layer` opens (`SECTIONS`); what the compiler
adds has no scope and takes that of the loop around it.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stripectl.hlo.async_ops import CONTAINERS, MATMULS, collectives_inside, spans
from stripectl.hlo.module import Collective, Instruction, Module, located_collectives
from stripectl.hlo.replica_groups import axis_of
from stripectl.results.compiled_program import LoopCopies, ScheduledCollective

CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
PARTS = {"whole_tile": "whole", "boundary_tile": "boundary", "tile_row": "row"}
BRANCH = "branch"
ATTENTION = "attention"
SECTIONS = (ATTENTION, "projections", "feed_forward", "head", "embedding", "optimizer")
SECTION = re.compile(rf"\b({'|'.join(SECTIONS)})\b")
AGAIN = "rematted_computation"  # what jax.checkpoint calls a forward pass inside the backward one
PART = re.compile("|".join(PARTS))
LARGE_BYTES = 2**20  # copies below this are bookkeeping
ALLOCATES = 'custom_call_target="AllocateBuffer"'  # a call that takes no time


def pass_of(scope: str) -> str | None:
    """Which pass says it; None where nothing says so."""
    return None if not scope else "backward" if "transpose(" in scope and AGAIN not in scope else "forward"


def section_of(scope: str) -> str | None:
    """The part of a training step that a scope lies in, the innermost."""
    found = SECTION.findall(scope)
    return found[-1] if found else None


def part_of(scope: str) -> str | None:
    """The innermost part of the kernel that a scope lies in."""
    found = PART.findall(scope)
    return PARTS[found[-1]] if found else None


def computes(instruction: Instruction) -> bool:
    """Whether it computes tiles: a loop or a call of the kernel, or a tile whose loop the compiler has dissolved."""
    if instruction.opcode == "fusion":
        return part_of(instruction.scope) in ("whole", "boundary")
    runs = instruction.opcode in ("while", "custom-call", "conditional") and ALLOCATES not in instruction.rest
    return runs and "attend_" in instruction.scope


@dataclass(frozen=True)
class CollectiveWindow:
    """How a collective is scheduled: split into a start and a done, and whether tiles, or anything that takes time,
    are computed between the two."""

    asynchronous: bool
    beside_tiles: bool
    beside_work: bool


IN_KERNEL = CollectiveWindow(True, True, True)  # of a hop that a kernel makes beside its tiles


def windows(module: Module) -> dict[str, CollectiveWindow]:
    """How every collective is scheduled, by the instruction's name. Of one that ends in another computation we do not
    see what is beside it."""
    return {
        collective.name: CollectiveWindow(
            not span.blocks, any(map(computes, span.between)), any(works(module, each) for each in span.between)
        )
        for lines in module.computations.values()
        for span in spans(module, lines).values()
        for collective in span.sent
    }


def works(module: Module, line: Instruction) -> bool:
    """Whether it is work that a transfer may hide behind."""
    runs = line.opcode in ("fusion", "custom-call", *MATMULS, *CONTAINERS) and ALLOCATES not in line.rest
    return runs and not collectives_inside(module, line)


def scheduled_collectives(
    module: Module, axes: Mapping[str, int]
) -> tuple[list[Collective], list[ScheduledCollective]]:
    """(every collective, the same with how they are scheduled; those that are alike together), on a mesh of such axes.

    Raises:
        StripectlError: a loop around a collective does not say how often it runs.
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
    branches that run for a rectangle only where it is live, as if all were, together; and of everything else together
    (`other`: the loops' own work, copies, merging, the rest of the program)."""

    whole: float = 0.0
    boundary: float = 0.0
    row: float = 0.0
    branch: float = 0.0
    other: float = 0.0
    bodies: Counter[str] = field(default_factory=Counter)

    def add(self, part: str, cycles: float) -> None:
        """One more loop body of a kind; programs hold several copies of the kernel, and their mean is taken."""
        self.bodies[part] += 1
        setattr(self, part, getattr(self, part) + (cycles - getattr(self, part)) / self.bodies[part])

    def shared(self, runs: int) -> dict[str, float]:
        """By name; of what adds up, the share of one of so many runs of the pass."""
        each = {name: getattr(self, name) for name in ("whole", "boundary", "row")}
        return each | {name: getattr(self, name) / runs for name in ("branch", "other")}


def cycles(module: Module, step: bool) -> tuple[dict[str, Cycles] | None, dict[str, float]]:
    """(estimated cycles of attention by pass, without tiles where those are a Pallas kernel's, None where the compiler
    estimates nothing, as for GPUs; cycles of the other parts of a training step, all of them together).

    Of a step, a pass of attention holds every layer's.
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
    """The part of a training step that what these lead to lies in."""
    known = (section_of(line.scope) for line in reversed(callers))
    return next((section for section in known if section), None)


def own_cycles(lines: Sequence[Instruction]) -> int:
    """Of instructions, without what they call."""
    return sum(int(known[1]) for line in lines if (known := CYCLES.search(line.rest)))


def costliest_callees(module: Module) -> Callable[[Instruction], list[str]]:
    """What an instruction enters: loops, calls, and of branches, one of which runs, the dearest."""

    def enter(line: Instruction) -> list[str]:
        if line.opcode == "conditional":
            return [max(line.called, key=lambda branch: own_cycles(module.computations[branch]))]
        return line.called if line.opcode in ("while", "call") else []

    return enter


def scope_of_callers(callers: Sequence[Instruction]) -> tuple[str | None, str]:
    """(the kernel's part or None, the pass) of what these lead to; a branch is a part too where it is in no other."""
    part, passes = None, "forward"
    for line in callers:
        part = part_of(line.scope) or part or (BRANCH if line.opcode == "conditional" else None)
        passes = pass_of(line.scope) or passes
    return part, passes


def copies(module: Module, step: bool) -> LoopCopies:
    """Copies of whole arrays in the ring's loops: how many a round, and how many bytes each round moves."""
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
