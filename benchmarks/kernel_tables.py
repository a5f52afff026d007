"""Makes the tables of `profiles/kernels/`: what tiles cost on TPUs, by the compiler, with no TPU at hand.

    python benchmarks/kernel_tables.py v5p v6e          # ten minutes each; alone: all
    python benchmarks/kernel_tables.py --schedules v5p  # what the schedules leave exposed, a minute; tiles stay

Each entry is a small program of one device (`stripectl.simulate.cost_entries.canonical_program`).
"""

import itertools
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from stripectl.compile.compiler import CompilerPool
from stripectl.compile.cost_model import exposed_transfers
from stripectl.core.layout import Tile
from stripectl.core.model_config import Model
from stripectl.core.plan import Plan, parse_plan, parse_tile
from stripectl.core.workload import Workload
from stripectl.hardware.profile import Hardware
from stripectl.hardware.target import Target, parse_target
from stripectl.hlo.schedule import ATTENTION
from stripectl.simulate.cost_entries import CostEntry, CostKey, Heads
from stripectl.simulate.cost_tables import PASSES, PassCosts
from stripectl.simulate.waves import Wave

FOLDER = Path(__file__).parents[1] / "profiles" / "kernels"
TILES = {
    "pallas_tpu": ["512x512", "1024x512", "1024x1024", "1024x2048", "2048x2048"],
    "splash": ["512x512", "512x1024", "1024x1024"],
    "xla": ["1024x1024", "1024x2048", "2048x2048", "2048x4096", "4096x4096"],
}
HEADS = (64, 128, 256)
# Where schedules are read.
TARGETS = {
    "v3": "v3:4x4",
    "v4": "v4:2x2x4",
    "v5e": "v5e:4x4",
    "v5p": "v5p:2x2x4",
    "v6e": "v6e:4x4",
    "tpu7x": "tpu7x:2x2x1",
}
LENGTHS = (2**15, 2**18)


def main(names: list[str], tiles_stay: bool) -> None:
    with CompilerPool(lambda *_: None) as compilers:
        for name in names:
            hardware = Hardware.load(name)
            exposed = schedules(hardware, lambda work, plan, target: compilers.report(work, plan, target, {}))
            if tiles_stay:
                path = FOLDER / f"{name}.yaml"
                kept = path.read_text().partition(EXPOSED)[0]
                path.write_text("\n".join([kept.rstrip(), *exposed_lines(exposed)]) + "\n")
            else:
                tabulate(name, lambda shape, hardware=hardware: compilers.compiled_costs(shape, hardware), exposed)


Exposed = dict[str, dict[int, dict[str, float]]]


def schedules(hardware: Hardware, facts: Callable[[Workload, Plan, Target], dict | None]) -> Exposed:
    """What the schedule of each scheme leaves without tiles beside it, by rows of a shard; `facts` compiles."""
    target, found = parse_target(TARGETS[hardware.name]), dict[str, dict[int, dict[str, float]]]()
    many = target.devices
    two = f"ring={max(2, many // 4)},ulysses={min(4, many // 2)}"
    meshes = {"usp": two, "ulysses": f"ulysses={many}"}
    for scheme, length in itertools.product(("ring", "bidirectional", "all_gather", "usp", "ulysses"), LENGTHS):
        mesh = meshes.get(scheme, f"ring={many}")
        plan = parse_plan(f"{scheme}/contiguous/pallas_tpu@{mesh}")
        rows = length // plan.shards
        plan = replace(plan, tile=Tile(min(1024, rows), min(1024, rows)))
        model = Model.load("1b")
        sizes: dict[str, Any] = {name: getattr(model, name) for name in ("heads", "kv_heads", "head_dim")}
        work = Workload(**sizes, seq_len=length, passes="forward-backward", model="1b")
        said = facts(work, plan, target)
        if said is None or "refused" in said:
            print(f"{hardware.name} {plan} of {length}: not compiled", file=sys.stderr)
            continue
        shares = exposed_transfers([each for each in said["collectives"] if each["section"] in (None, ATTENTION)])
        shares = {key: share for key, share in shares.items() if key[1] != "all-to-all"}
        found.setdefault(scheme, {})[rows] = {" ".join(map(str, key)): share for key, share in sorted(shares.items())}
    found = {scheme: by_rows for scheme, by_rows in found.items() if any(by_rows.values())}
    return found


def tabulate(name: str, costs: Callable[[CostKey], PassCosts | None], exposed: Exposed) -> None:
    """Write the table of a machine whose entries costs(shape) gives; shapes without costs are left out."""
    lines, made_by = list[str](), ""
    for kernel, tiles in TILES.items():
        found = list[str]()
        for head_dim in HEADS:
            rows = list[str]()
            for text in tiles:
                known = costs(CostKey(kernel, "bfloat16", Heads(head_dim, head_dim), parse_tile(text)))
                if known is None or len(known.by_pass) < len(PASSES):
                    print(f"{name} {kernel} {head_dim} {text}: not compiled", file=sys.stderr)
                    continue
                made_by = known.detail["made_by"]
                rows.append(f'        "{text}":')
                rows += [f"          {passes}: {written(entry)}" for passes, entry in known.by_pass.items()]
            found += [f"      {head_dim}:", *rows] if rows else []
        lines += [f"  {kernel}:", "    bfloat16:", *found] if found else []
    if lines:
        write(name, made_by, [*lines, *exposed_lines(exposed)])


EXPOSED = "# The share of transfers (pass, collective, bytes per element) that the schedule puts no tiles beside, by"


def exposed_lines(exposed: Exposed) -> list[str]:
    lines = [EXPOSED, "# scheme and rows of a shard.", "exposed:"] if exposed else []
    for scheme, by_rows in exposed.items():
        lines += [f"  {scheme}:", *(f"    {rows}: {shown(each)}" for rows, each in by_rows.items())]
    return lines


def written(entry: CostEntry | Wave) -> str:
    assert isinstance(entry, CostEntry)
    return "{" + ", ".join(f"{name}: {cycles:.0f}" for name, cycles in entry._asdict().items() if cycles) + "}"


def shown(shares: dict[str, float]) -> str:
    return "{" + ", ".join(f'"{each}": {share:g}' for each, share in shares.items()) + "}"


def write(name: str, made_by: str, lines: list[str]) -> None:
    text = f"""# What a tile costs on {name}: cycles of a device for a tile of each kind of one head, and for a row of
# tiles (backward, where tiles lie in columns, a column of a key/value head). By kernel, dtype, head_dim, queries x keys
# and pass.
# Made by: python benchmarks/kernel_tables.py {name}
source: the compiler's final bundles (pallas_tpu, splash), or its estimated cycles (xla), of one small program an entry
compiler: {made_by}
kernels:
"""
    (FOLDER / f"{name}.yaml").write_text(text + "\n".join(lines) + "\n")
    print(f"{name}: {FOLDER / name}.yaml")


if __name__ == "__main__":
    given = [each for each in sys.argv[1:] if each != "--schedules"]
    main(given or list(TARGETS), "--schedules" in sys.argv)
