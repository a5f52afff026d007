"""Makes the tables of `profiles/kernels/`: what tiles cost on TPUs, by the compiler, with no TPU at hand.

    python benchmarks/kernel_tables.py v5p v6e          # tiles that a table lacks; twenty minutes each; alone: all
    python benchmarks/kernel_tables.py --schedules v5p  # what the schedules leave exposed; tiles stay; GPUs too
    python benchmarks/kernel_tables.py --recurrences v5p v5e  # chunks of linear attention; all else stays
    python benchmarks/kernel_tables.py --decay v5p v5e  # of these, chunks with a constant decay
    python benchmarks/kernel_tables.py --tokamax tpu7x  # its kernel, with Python 3.12 or newer; all else stays

An entry of the same compiler stays as it is; of another compiler, all entries are made again.
Each entry is a small program of one device (`stripectl.costs.sources.small_programs.canonical_program`). What schedules
leave exposed is read from the plans that `benchmarks/agreement.py` recorded.
"""

import json
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from stripectl.compile.compiler import CompilerPool, SmallProgram
from stripectl.compile.toolchain import TOOLCHAINS
from stripectl.core.layout import parse_tile
from stripectl.core.linear_attention import CONSTANT
from stripectl.core.plan import parse_plan
from stripectl.costs.shape import Heads, TileShape
from stripectl.costs.sources.small_programs import TileCycles
from stripectl.costs.sources.table import PASSES
from stripectl.hardware.profile import Hardware
from stripectl.util.files import load_yaml

FOLDER = Path(__file__).parents[1] / "profiles" / "kernels"
SMALL = ("128x128", "256x256", "128x1024", "1024x128", "256x512")  # they show what a step of a tile costs
TILES = {
    "pallas_tpu": [
        *(*SMALL, "512x512", "1024x512", "1024x1024", "1024x1024x256", "1024x1024x1024"),
        *("1024x2048", "1024x2048x2048", "2048x1024", "2048x2048", "4096x4096"),
    ],
    "pallas_bounded": [
        "128x128",
        "256x256",
        "1024x128",
        "512x512",
        "1024x512",
        "1024x1024",
        "1024x1024x1024",
        "2048x2048",
    ],
    "splash": [*SMALL, "512x512", "512x1024", "1024x512", "1024x1024", "1024x2048", "2048x1024", "2048x2048"],
    "xla": ["512x512", "1024x1024", "1024x2048", "2048x2048", "2048x4096", "4096x4096"],
}
TOKAMAX_TILES = (
    *("512x512", "256x1024", "1024x512", "1024x1024", "1024x1024x256", "1024x1024x512"),
    *("1024x2048x256", "1024x2048x512", "1024x2048x1024", "2048x1024", "2048x1024x256", "2048x1024x512"),
    *("2048x2048x256", "2048x2048x512", "2048x2048x1024"),
)
HEADS = ("64", "128", "256")
TOKAMAX_HEADS = (*HEADS, "192/128")
RECURRENCES = {  # of a kernel, and the heads
    ("pallas_gated", "deltanet"): ["128"],
    ("pallas_gated", "gdn"): ["128"],
    ("pallas_gated", "kda"): ["128"],
    ("pallas_gated", "gla"): ["128"],
    ("pallas_gated", "mamba2"): ["128", "128/64"],
    ("pallas_chunked", CONSTANT): ["64", "128"],
}
CHUNKS = {"pallas_gated": ("64x64", "128x128"), "pallas_chunked": ("64x64", "128x128", "256x256")}
RECORDS = Path(__file__).parent / "compiled"
# Machines without recorded plans: whose schedules are theirs, by the same compiler.
RECORD_OF = {"v3": "v4", "h200": "h100", "b200": "h100", "gb200": "h100", "gb300": "h100"}
HEADER = """# What a tile costs on {name}: cycles of a device for a tile of each kind of one head, and for a row of
# tiles (backward, where tiles lie in columns, a column of a key/value head). By kernel, dtype, head_dim, queries x keys
# and pass.
# Made by: python benchmarks/kernel_tables.py {name}
source: the compiler's final bundles (pallas_tpu, splash), or its estimated cycles (xla), of one small program an entry
compiler: {compiler}
kernels:
"""
MACHINES = ("v3", "v4", "v5e", "v5p", "v6e", "tpu7x")


def main(names: list[str], part: str) -> None:
    with CompilerPool(lambda *_: None) as compilers:
        for name in names:
            hardware = Hardware.load(name)
            PARTS[part](name, lambda shape, hardware=hardware: compilers.small_program(shape, hardware))


HOPS = "collective-permute"


class Schedule(NamedTuple):
    """What the compiler's schedules leave without tiles beside it: collectives in every plan that sends any, and hops
    by scheme and rows of a shard; by scheme and layout where a layout leaves more than the others."""

    blocking: list[str]
    exposed: dict[str, dict[int, dict[str, float]]]


def schedule_of(name: str) -> Schedule:
    """What the recorded plans of a machine say: a hop's share of a scheme is the least of those of its layouts."""
    path = RECORDS / f"{RECORD_OF.get(name, name)}.json"
    rows = [row for row in json.loads(path.read_text()) if "refused" not in row]
    sent = defaultdict(list)
    hops: dict[str, dict[int, dict[str, dict[str, float]]]] = defaultdict(lambda: defaultdict(dict))
    for row in rows:
        plan, shares = parse_plan(row["plan"]), row["exposed"]
        for opcode in row["bytes"]:
            sent[opcode].append(any(opcode in key.split() for key in shares))
        if HOPS in row["bytes"]:
            own = {key: share for key, share in shares.items() if HOPS in key.split()}
            hops[plan.scheme][row["workload"]["seq_len"] // plan.shards][plan.layout] = own
    blocking = {opcode for opcode, found in sent.items() if opcode != HOPS and all(found)}
    if "all-reduce" in blocking:
        blocking.add("reduce-scatter")  # it is sent as the former
    exposed = dict[str, dict[int, dict[str, float]]]()
    for scheme, by in hops.items():
        exposed[scheme] = {n: common([*layouts.values()]) for n, layouts in by.items()}
        for layout in sorted({layout for layouts in by.values() for layout in layouts}):
            own = {n: layouts[layout] for n, layouts in by.items() if layout in layouts}
            if any(share != exposed[scheme][n] for n, share in own.items()):
                exposed[f"{scheme}/{layout}"] = own
    return Schedule(sorted(blocking), {scheme: by for scheme, by in exposed.items() if any(by.values())})


def common(layouts: list[dict[str, float]]) -> dict[str, float]:
    keys = [key for key in layouts[0] if all(key in each for each in layouts)]
    return {key: min(each[key] for each in layouts) for key in sorted(keys)}


Costs = Callable[[TileShape], SmallProgram | None]


def tabulate(name: str, costs: Costs) -> None:
    """Add the missing tiles to the table of a machine; tiles without costs(shape) are left out."""
    path = FOLDER / f"{name}.yaml"
    if not path.exists():
        path.write_text(HEADER.format(name=name, compiler=TOOLCHAINS["tpu"].name))
    for kernel, tiles in TILES.items():
        add_tiles(name, kernel, tiles, HEADS, costs)
    tabulate_schedule(name, costs)


def tabulate_tokamax(name: str, costs: Costs) -> None:
    """Add the missing tiles of tokamax's kernel to the table of a machine, and the name of their compiler."""
    add_tiles(name, "tokamax", TOKAMAX_TILES, TOKAMAX_HEADS, costs)
    path = FOLDER / f"{name}.yaml"
    head, mark, rest = path.read_text().partition("kernels:\n")
    head = re.sub("compilers: .*\n", "", head)
    path.write_text(f"{head}compilers: {{tokamax: {TOOLCHAINS['tpu'].name}}}\n{mark}{rest}")


def add_tiles(name: str, kernel: str, tiles: Sequence[str], heads: Sequence[str], costs: Costs) -> None:
    """Write the tiles of a kernel in the table of a machine: the entries that it has, and those that it lacks."""
    path, own = FOLDER / f"{name}.yaml", re.compile(f"  {kernel}:\n(    .*\n)+")
    known = known_entries(name, kernel)
    lines = [f"  {kernel}:", "    bfloat16:"]
    for sizes in heads:
        rows = list[str]()
        for text in dict.fromkeys([*tiles, *known.get(sizes, {})]):
            shape = TileShape(kernel, "bfloat16", Heads.read(sizes), parse_tile(text))
            by_pass = known.get(sizes, {}).get(text) or cycles_by_pass(costs(shape))
            if not by_pass:
                print(f"{name} {kernel} {sizes} {text}: not compiled", file=sys.stderr)
                continue
            rows.append(f'        "{text}":')
            rows += [f"          {passes}: {written(entry)}" for passes, entry in by_pass.items()]
        lines += [f"      {sizes}:", *rows] if rows else []
    content, section = path.read_text(), "\n".join([*lines, ""])
    if own.search(content):
        path.write_text(own.sub(section, content))
    else:
        path.write_text(content.replace("kernels:\n", f"kernels:\n{section}", 1))


def known_entries(name: str, kernel: str) -> dict[str, dict[str, dict[str, TileCycles]]]:
    """The entries of a kernel in the table of a machine by heads, tile and pass, if this compiler made them."""
    table = load_yaml(FOLDER / f"{name}.yaml", "kernel table")
    made_by = (table.get("compilers") or {}).get(kernel) or table["compiler"]
    if made_by != TOOLCHAINS["tpu"].name:
        return {}
    by_heads = (table["kernels"] or {}).get(kernel, {}).get("bfloat16", {})
    return {
        str(sizes): {
            text: {passes: TileCycles(**each) for passes, each in by_pass.items()} for text, by_pass in of.items()
        }
        for sizes, of in by_heads.items()
    }


def cycles_by_pass(known: SmallProgram | None) -> Mapping[str, TileCycles]:
    return known.cycles if known else {}


def tabulate_chunks(name: str, costs: Costs, kernels: Sequence[str] = tuple(CHUNKS)) -> None:
    """Write the chunks of linear attention in the table of a machine, in place of those that it has."""
    lines, path = list[str](), FOLDER / f"{name}.yaml"
    before, mark, after = path.read_text().partition(MADE_BY)
    for (kernel, recurrence), sizes in RECURRENCES.items():
        if kernel not in kernels:
            continue
        title = f"  {kernel}/{recurrence}:"
        before = re.sub(f"{title}\n(    .*\n)+", "", before)
        lines += [title, "    bfloat16:"]
        for heads in sizes:
            lines.append(f'      "{heads}":')
            for text in CHUNKS[kernel]:
                known = costs(TileShape(kernel, "bfloat16", Heads.read(heads), parse_tile(text), recurrence))
                if known is None or len(known.cycles) < len(PASSES):
                    sys.exit(f"{name} {kernel} {recurrence} {heads} {text}: not compiled")
                lines.append(f'        "{text}":')
                lines += [f"          {passes}: {written(entry)}" for passes, entry in known.cycles.items()]
                print(name, recurrence, heads, text, flush=True)
    path.write_text("\n".join([before.rstrip(), *lines, mark]) + after)


def tabulate_schedule(name: str, _: Costs) -> None:
    """Write what the schedules of a machine leave exposed, in place of what its table says; tiles stay."""
    path = FOLDER / f"{name}.yaml"
    kept = path.read_text().partition(MADE_BY)[0]
    path.write_text("\n".join([kept.rstrip(), *schedule_lines(name, schedule_of(name))]) + "\n")


MADE_BY = "# What the compiler's schedule leaves without tiles beside it"


def schedule_lines(name: str, left: Schedule) -> list[str]:
    of = RECORD_OF.get(name, name)
    lines = [
        f"{MADE_BY}: benchmarks/compiled/{of}.json, read by",
        f"# python benchmarks/kernel_tables.py --schedules {name}",
    ]
    lines += ["# Collectives, in every plan.", f"blocking: [{', '.join(left.blocking)}]"]
    if left.exposed:
        lines += [
            "# The share of hops (pass, collective, bytes per element), by scheme and rows of a shard.",
            "exposed:",
        ]
    for scheme, by_rows in left.exposed.items():
        lines += [f"  {scheme}:", *(f"    {rows}: {shown(each)}" for rows, each in by_rows.items())]
    return lines


def written(entry: TileCycles) -> str:
    return "{" + ", ".join(f"{name}: {cycles:.0f}" for name, cycles in entry._asdict().items() if cycles) + "}"


def shown(shares: dict[str, float]) -> str:
    return "{" + ", ".join(f'"{each}": {share:g}' for each, share in shares.items()) + "}"


PARTS = {
    "all": tabulate,
    "schedules": tabulate_schedule,
    "recurrences": tabulate_chunks,
    "decay": partial(tabulate_chunks, kernels=("pallas_chunked",)),
    "tokamax": tabulate_tokamax,
}

if __name__ == "__main__":
    given = [each for each in sys.argv[1:] if not each.startswith("--")]
    main(given or list(MACHINES), next((part for part in PARTS if f"--{part}" in sys.argv), "all"))
