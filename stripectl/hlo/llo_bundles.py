"""The cost of a Pallas kernel's tiles in the TPU compiler's own schedule: the VLIW bundles of a libtpu dump.

A bundle is issued at once, in about one cycle where nothing waits. The compiler writes bundles where a program is
compiled with `dump_flags` in LIBTPU_INIT_ARGS: one file per kernel, TIME-NAME-NN-final_bundles.txt, where NAME is the
HLO instruction's (`splash_mha_fwd_residuals.6`), so a program's text shows which call is which. The format is
undocumented; this description is from dumps of libtpu 0.0.42 for v4, v5e, v5p, v6e and tpu7x:

- A kernel is one loop over the steps of its grid (`LB`), whose bundles are marked `>` where they are not empty (`>>` in
  a loop inside, such as a copy's). It has two more iterations than steps, because its loads and stores are pipelined;
  its exit test holds their number, except for a grid whose length only the device knows.
- A branch forward to `$regionN`, which starts further down, may skip the bundles between: a guarded region.

The innermost region with most of the matmuls is the tile; where several have equally many, the shortest is the region
of whole tiles and the longest the region of boundary tiles. A kernel that leaves out dead parts of boundary tiles has
fewer matmuls there, and more than half. A kernel with a mask guards its tiles, because its grid also steps over dead
tiles; a kernel without a mask does not. Guarded regions without matmuls start and end a row of tiles.

Next to the bundles of a kernel is a table of the units that each bundle uses, TIME-NAME-NN-...-utilization.txt, and of
how many operations a unit takes at once: MXU matrices, VALU vectors, EUP exponentials, XLU lanes, VPOP results of the
MXU, XLU and EUP, VLOAD and VSTORE, of which FILL and SPILL are for registers.

Bundles do not include waiting: for memory, and for a matrix unit that is given work faster than it takes it (tiles of
dK/dV on v5e show 10 % fewer bundles than their matmuls take at the peak rate). Take the longer of the two.

On v4 and v5p a JAX device is two cores, and bundles and steps belong to one core: kernels that share their grid
(splash's forward) show half of its steps, others (dQ, dK/dV) run all of them on one core while the other is idle.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from stripectl.errors import StripectlError
from stripectl.results.compiled_program import KernelBundles

FILE = re.compile(r"\d+-(.+)-\d+-final_bundles\.txt")
BUNDLE = re.compile(r"^ *(?:0x)?([0-9a-f]+) +([A-Z]{2})? *:([ >]*)")
CALL = re.compile(r"entry bundle: %\S+ = custom-call\(")
BRANCH = re.compile(r"sbr\.rel \(!?%p\w+\) target = \$region(\d+)")
TARGET = re.compile(r"Start/End empty region (\d+)")
MATMUL = re.compile(r"\bvmatmul\.")
TURNS = re.compile(r"scmp\.ge\.s32\.totalorder %\w+, (\d+) /\* loop exit test")
PIPELINED = 2  # iterations of the loop in which the first step is only loaded, or the last step only stored


class Bundle(NamedTuple):
    address: int
    tag: str
    loops: int  # around it, except an empty loop
    text: str


class Region(NamedTuple):
    """Bundles [start, end) that a branch may skip."""

    start: int
    end: int


def dump_flags(folder: Path) -> str:
    """Flags for LIBTPU_INIT_ARGS of a process that compiles: the final bundles of every program go to `folder`."""
    return f"--xla_jf_dump_to={folder} --xla_jf_dump_llo_text=true --xla_jf_dump_llo_pass_label_regex=final.*"


def kernels(folder: Path) -> list[KernelBundles]:
    """The Pallas kernels of a dump, by name.

    Raises:
        StripectlError: the folder holds no dump or no kernel, or the format is unknown.
    """
    files = [(found[1], path) for path in sorted(folder.glob("*.txt")) if (found := FILE.fullmatch(path.name))]
    if not files:
        raise StripectlError(f"{folder} holds no final bundles: this libtpu has no such dump, or nothing was compiled.")
    found = [kernel(name, path.read_text(), utilization(path)) for name, path in files if is_kernel(path)]
    if not found:
        raise StripectlError(f"the {len(files)} programs in {folder} hold no Pallas kernel.")
    return sorted(found, key=lambda each: each.name)


def is_kernel(path: Path) -> bool:
    """Whether a dump is of a custom call; the others are the compiler's own fusions."""
    with path.open() as file:
        return any(CALL.search(line) for line in file)


def utilization(path: Path) -> str:
    """The table of units of the kernel whose bundles a file holds; empty where the compiler wrote none."""
    own = path.name.rpartition("-final_bundles")[0].rpartition("-")[0]
    tables = (each for each in path.parent.glob("*-utilization.txt") if each.name.startswith(f"{own}-"))
    return next((each.read_text() for each in tables), "")


def unit_cycles(table: str, bundles: Iterable[Bundle]) -> dict[str, float]:
    """By unit, the cycles that the operations of bundles take; empty for a table of another format."""
    lines = [re.split(r"[,\s]+", line.strip()) for line in table.splitlines()]
    try:
        _, names, capacity, _, *rows = lines
        used = [list(map(int, rows[bundle.address])) for bundle in bundles]
        sums = (sum(column) for column in zip(*used, strict=True))
        return {name: each / int(most) for name, most, each in zip(names, capacity, sums, strict=True)}
    except (ValueError, IndexError, ZeroDivisionError):
        return {}


def kernel(name: str, text: str, table: str = "") -> KernelBundles:
    """A kernel from the text of its bundles, and the table of their units.

    Raises:
        StripectlError: the format is unknown.
    """
    bundles = list(parse_bundles(text.splitlines()))
    first, last, turns = the_loop(name, bundles)
    inside = bundles[first : last + 1]
    regions = [region for region in guarded(bundles) if first <= region.start and region.end <= last + 1]
    home = {bundle.address: innermost(regions, bundle.address) for bundle in inside}
    matmuls, sizes = Counter[Region | None](), Counter[Region | None]()
    for bundle in inside:
        matmuls[home[bundle.address]] += len(MATMUL.findall(bundle.text))
        sizes[home[bundle.address]] += 1
    most = max(matmuls.values())
    if not most:
        raise StripectlError(f"the bundles of {name} hold no known matmul. Their format is unknown.")
    of_a_tile = (region for region, count in matmuls.items() if 2 * count > most)
    tiles = sorted(of_a_tile, key=lambda region: (-matmuls[region], sizes[region]))
    around = {region for region in regions for tile in tiles if tile and region != tile and encloses(region, tile)}
    step = sum(sizes[region] for region in {None, *around} - {*tiles})
    whole, boundary = tiles[0], tiles[-1]
    row = sizes.total() - step - sum(sizes[region] for region in tiles)
    steps = None if turns is None else turns - PIPELINED
    units = unit_cycles(table, [bundle for bundle in inside if home[bundle.address] == whole])
    computed = matmuls[boundary] / matmuls[whole]
    cycles = sizes[whole], sizes[boundary], step, row
    return KernelBundles(name, steps, *cycles, masked=bool(around), boundary_matmuls=computed, units=units)


def parse_bundles(lines: Iterable[str]) -> Iterator[Bundle]:
    """Bundles in order; a bundle may extend over several lines."""
    head, text = (-1, "", 0), list[str]()
    for line in [*lines, "0 :"]:
        if found := BUNDLE.match(line):
            if head[0] >= 0:
                yield Bundle(*head, "\n".join(text))
            head, text = (int(found[1], 16), found[2] or "", found[3].count(">")), [line[found.end() :]]
        else:
            text.append(line)


def the_loop(name: str, bundles: list[Bundle]) -> tuple[int, int, int | None]:
    """(first bundle, last bundle, iterations if known) of the one loop of a kernel."""
    heads = [bundle.address for bundle in bundles if bundle.tag == "LB" and bundle.loops == 1]
    exits = [int(found[1]) for bundle in bundles if (found := TURNS.search(bundle.text))]
    if [bundle.address for bundle in bundles] != list(range(len(bundles))) or len(heads) != 1 or len(exits) > 1:
        raise StripectlError(
            f"the bundles of {name} are not one loop over the steps of a grid ({len(heads)} loops in "
            f"{len(bundles)} bundles). Their format is unknown."
        )
    last = max(bundle.address for bundle in bundles if bundle.loops)
    branches = (bundle.address for bundle in bundles[last:] if BRANCH.search(bundle.text))
    return heads[0], next(branches, last), exits[0] if exits else None


def guarded(bundles: list[Bundle]) -> list[Region]:
    """The regions that a forward branch may skip."""
    targets = {int(number): bundle.address for bundle in bundles for number in TARGET.findall(bundle.text)}
    jumps = ((bundle.address, int(number)) for bundle in bundles for number in BRANCH.findall(bundle.text))
    return [Region(at + 1, targets[to]) for at, to in jumps if targets.get(to, at) > at]


def innermost(regions: list[Region], address: int) -> Region | None:
    around = (region for region in regions if region.start <= address < region.end)
    return min(around, key=lambda region: region.end - region.start, default=None)


def encloses(outer: Region, inner: Region) -> bool:
    return outer.start <= inner.start and inner.end <= outer.end
