"""The instructions of a profiled program: opcodes from its HLO, never from names; the collectives that form one hop,
the mesh axis of the hop, and the bytes that a device sends.

A hop is a group of transfers that the program issues together: from one place in it (computation and scope), between
the same devices, none waiting for another. In a rolled loop each iteration is another hop of the same place.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from stripectl.core.scopes import MOVED
from stripectl.hlo.async_ops import CONTAINERS, MATMULS, Span, base, instructions_inside, predecessors, spans
from stripectl.hlo.module import INSTRUCTION, Instruction, Module, sent_bytes_of
from stripectl.hlo.replica_groups import axis_of, groups_of
from stripectl.hlo.schedule import pass_of, works

NO_WORK = ("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "partition-id", "replica-id")


class Site(NamedTuple):
    """The place in the program where a hop is issued, and its properties that are equal each time it runs."""

    place: tuple[str, ...]  # computation, scope, senders and receivers, number of hops before it in one iteration
    opcode: str
    passes: str
    axis: str
    what: str  # the scheme's name for the data, empty where the program is not stripectl's
    asynchronous: bool
    beside_compute: bool  # whether the schedule has work between its start and its done


class Role(NamedTuple):
    """The role of an event: `compute`, `container`, `move` (a blocking collective), `start` or `done` of an
    asynchronous collective, or `none` of these."""

    kind: str
    site: Site | None = None
    sent_bytes: int = 0
    start: str = ""  # of a done: the instruction that it completes
    computes: bool = False  # a fusion that sends and multiplies at once


def what_of(instruction: Instruction) -> str:
    """The scheme's name for the data, from the scope that `comm` opens; a gather's transpose scatters gradients."""
    found = MOVED.search(instruction.scope)
    gradient = "d" * (base(instruction.opcode) == "reduce-scatter")
    return f"{gradient}{found[1]}" if found else ""


def module_of(names: Iterable[Iterable[str]]) -> Module:
    """A program reconstructed from events alone, where their names are the texts of its instructions."""
    found = (INSTRUCTION.match(f"  {name}") for name in dict.fromkeys(itertools.chain.from_iterable(names)))
    return Module("", {"": [Instruction(*each.groups()) for each in found if each]})


@dataclass(frozen=True)
class ProfiledProgram:
    """A module's instructions by name, on a mesh that may be unknown."""

    module: Module
    axes: Mapping[str, int]

    @cached_property
    def roles(self) -> dict[str, Role]:
        """The role of every instruction."""
        return {
            name: role
            for computation, lines in self.module.computations.items()
            for name, role in self._computation(computation, lines).items()
        }

    @property
    def hops(self) -> bool:
        """Whether its kernels send hops."""
        return any(line.hop for lines in self.module.computations.values() for line in lines)

    @property
    def devices(self) -> int:
        """The number of devices that its collectives name; 0 where they name none."""
        every = itertools.chain.from_iterable(self.module.computations.values())
        return max((1 + max(map(max, groups)) for line in every if (groups := groups_of(line.rest))), default=0)

    def role(self, text: str) -> Role | None:
        """The role of an event by its name, which is an instruction's name or, on TPUs, its whole text; else None."""
        found = INSTRUCTION.match(f"  {text}")
        name = found[1] if found else text.lstrip("%")
        if name in self.roles or not found:
            return self.roles.get(name)
        return self._computation("", [Instruction(*found.groups())])[name]

    @cached_property
    def opcodes(self) -> dict[str, str]:
        return {line.name: line.opcode for lines in self.module.computations.values() for line in lines}

    def opcode(self, text: str) -> str:
        """The opcode of an event by its name; `kernel` where the program does not know the name."""
        found = INSTRUCTION.match(f"  {text}")
        return found[3] if found else self.opcodes.get(text.lstrip("%"), "kernel")

    def _computation(self, computation: str, lines: Sequence[Instruction]) -> dict[str, Role]:
        """The roles of one computation's instructions."""
        here, used = spans(self.module, lines), predecessors(lines)
        dones = {span.end: start for start, span in here.items() if span.end}
        depths: dict[tuple[str, str], dict[str, int]] = {}

        def role(line: Instruction) -> Role:
            if line.name not in here:
                return Role("done", start=dones[line.name]) if line.name in dones else Role(kind_of(line))
            span = here[line.name]
            sent = span.sent[0]
            where = sent.scope, str(groups_of(sent.rest))
            if where not in depths:
                depths[where] = waited_for(where, lines, here, used)
            site = Site(
                (computation, *where, str(depths[where][line.name])),
                base(sent.opcode),
                pass_of(sent.scope) or "forward",
                axis_of(sent.rest, self.axes),
                what_of(sent),
                not span.blocks,
                any(works(self.module, each) for each in span.between),
            )
            fused = any(each.opcode in MATMULS for each in instructions_inside(self.module, line))
            return Role("move" if span.blocks else "start", site, sum(map(sent_bytes_of, span.sent)), computes=fused)

        return merged_roles({line.name: role(line) for line in lines})


def kind_of(line: Instruction) -> str:
    """The role of an instruction that is not a transfer, by its opcode; a done without its start is `none`."""
    if line.opcode in CONTAINERS:
        return "container"
    parts = line.opcode.endswith(("-start", "-update", "-done"))
    return "none" if line.opcode in NO_WORK or parts else "compute"


def merged_roles(roles: Mapping[str, Role]) -> dict[str, Role]:
    """The roles with all transfers of a place at one site: asynchronous, or during compute, where all of them are."""
    sites: dict[tuple[str, ...], Site] = {}
    for site in (role.site for role in roles.values() if role.site):
        known = sites.setdefault(site.place, site)
        sites[site.place] = known._replace(
            asynchronous=known.asynchronous and site.asynchronous,
            beside_compute=known.beside_compute and site.beside_compute,
        )
    return {name: role._replace(site=sites[role.site.place]) if role.site else role for name, role in roles.items()}


def waited_for(
    where: tuple[str, str],
    lines: Sequence[Instruction],
    here: Mapping[str, Span],
    used: Mapping[str, Sequence[str]],
) -> dict[str, int]:
    """For every instruction of a computation: the number of earlier transfers of its scope and group that wait for each
    other."""
    depth: dict[str, int] = {}
    for line in lines:
        collective = here[line.name].sent[0] if line.name in here else None
        own = collective is not None and where == (collective.scope, str(groups_of(collective.rest)))
        depth[line.name] = max((depth.get(name, 0) for name in used[line.name]), default=0) + own
    return depth
