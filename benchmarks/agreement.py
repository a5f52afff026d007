"""Simulated without a compiler and compiled: the same plans, forward and backward, at 32k and 256k tokens.

    python benchmarks/agreement.py v5p:2x2x4 v4:2x2x4      # ten minutes a target; alone: all
    python benchmarks/agreement.py --recorded v5p:2x2x4    # times by the tables of today, no compiler: seconds

Both take tiles from the same table; what the plan's own program adds is which transfers its schedule leaves without
tiles beside them. Each target's rows are written to benchmarks/compiled/ too: tests/compile/test_compiled_plans.py
holds them against what no machine can beat, and against each other; kernel_tables.py reads the schedules of the tables
there.
"""

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from stripectl.compile.compiler import CompilerPool
from stripectl.compile.cost_model import compiled_cost_model
from stripectl.core.layout import Tile
from stripectl.core.plan import Plan, parse_plan
from stripectl.core.workload import Workload
from stripectl.costs.default_tiles import with_tile
from stripectl.costs.shape import shapes_of
from stripectl.costs.source_order import cost_model
from stripectl.costs.sources.small_programs import entries_of
from stripectl.costs.sources.table import read_transfer
from stripectl.hardware.placement import place_mesh
from stripectl.hardware.target import Target, parse_target
from stripectl.simulate.simulation import simulate

TARGETS = ("v4:2x2x4", "v5e:4x4", "v5p:2x2x4", "v6e:4x4", "tpu7x:2x2x1", "h100:8", "a100:8")
LENGTHS = (2**15, 2**18)
KERNELS = {"tpu": "pallas_tpu", "gpu": "cudnn"}
WORK = Workload(seq_len=LENGTHS[0], heads=16, kv_heads=16, head_dim=128, passes="forward-backward")
FOLDER = Path(__file__).parent / "compiled"


def plans(target: Target, work: Workload) -> Iterator[Plan]:
    """One device alone, and every scheme on all devices, tiles all alike."""
    many, kernel = target.devices, KERNELS[target.hardware.kind]
    two = f"ring={many // 4},ulysses=4" if many > 8 else f"ring={many // 2},ulysses=2"
    texts = [f"ring/contiguous/{kernel}@ring=1", f"ulysses/contiguous/{kernel}@ulysses={many}"]
    for layout in ("contiguous", "striped", "zigzag"):
        texts += [f"{scheme}/{layout}/{kernel}@ring={many}" for scheme in ("ring", "bidirectional", "all_gather")]
        texts.append(f"usp/{layout}/{kernel}@{two}")
    for plan in map(parse_plan, texts):
        side = min(1024, work.seq_len // plan.shards // (2 if plan.layout == "zigzag" else 1))
        tile = Tile(side, side) if kernel == "pallas_tpu" else None
        yield with_tile(replace(plan, tile=tile), work, target.hardware)


def row(work: Workload, plan: Plan, target: Target, compilers: CompilerPool) -> dict[str, Any]:
    """What was asked, seconds of either method, and what the compiler said: bytes that a device sends, the most memory
    that it holds, cycles of a tile of each pass, and the transfers that have no tiles beside them."""
    asked = {"target": str(target), "plan": str(plan), "workload": work.to_json()}
    report = compilers.report(work, plan, target, {})
    if report.refused is not None:
        return with_times({**asked, "refused": " ".join(report.refused.split())[:200]})
    wired = place_mesh(target, plan.mesh or ())
    machine = compiled_cost_model(target.hardware, work, plan, report.program, wired)
    shapes = shapes_of(work, plan)
    entries = {
        passes: entries_of(report.program, shape, target.hardware).get(passes) for passes, shape in shapes.items()
    }
    said = {
        "bytes": dict(report.bytes or {}),
        "peak_bytes": report.peak_bytes,
        "cycles": {
            passes: {"whole": round(entry.whole), "boundary": round(entry.boundary)}
            for passes, entry in entries.items()
            if entry
        },
        "exposed": dict(machine.cost_source.exposed or {}),
        "compiler": report.program.compiler,
    }
    return with_times(asked | said)


def with_times(row: dict[str, Any]) -> dict[str, Any]:
    """The row with the seconds of either method."""
    target, plan, work = parse_target(row["target"]), parse_plan(row["plan"]), Workload.from_json(row["workload"])
    machine = cost_model(target.hardware, work, plan, place_mesh(target, plan.mesh or ()))
    times = {"simulated_s": simulate(work, plan, machine).seconds}
    if "refused" not in row:
        exposed = {read_transfer(text): share for text, share in row["exposed"].items()}
        times["compiled_s"] = simulate(work, plan, machine.with_schedule(exposed)).seconds
    asked = ("target", "plan", "workload")
    return {key: row[key] for key in asked} | times | {key: row[key] for key in row if key not in (*asked, *times)}


def main(names: list[str], recorded: bool) -> None:
    FOLDER.mkdir(exist_ok=True)
    print("target        tokens  plan                                                     simulated   compiled  ratio")
    with CompilerPool(lambda *_: None) as compilers:
        for target in map(parse_target, names):
            path, rows = FOLDER / f"{target.hardware.name}.json", list[dict[str, Any]]()
            made = map(with_times, json.loads(path.read_text())) if recorded else compiled(target, compilers)
            for each in made:
                rows.append(each)
                if not recorded:  # a plan takes long to compile
                    write(path, rows)
                show(each)
            write(path, rows)


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    lines = ",\n".join(map(json.dumps, rows))
    path.write_text(f"[\n{lines}\n]\n")


def compiled(target: Target, compilers: CompilerPool) -> Iterator[dict[str, Any]]:
    for length in LENGTHS:
        work = replace(WORK, seq_len=length)
        for plan in plans(target, work):
            yield row(work, plan, target, compilers)


def show(row: dict[str, Any]) -> None:
    asked = f"{row['target']:12} {row['workload']['seq_len'] // 1024:5}k  {row['plan']:60}"
    if "refused" in row:
        print(f"{asked}  refused: {row['refused'][:60]}", flush=True)
        return
    simulated, compiled = row["simulated_s"], row["compiled_s"]
    print(f"{asked} {simulated * 1e3:7.1f} ms {compiled * 1e3:6.1f} ms  {simulated / compiled:.3f}", flush=True)


if __name__ == "__main__":
    given = [each for each in sys.argv[1:] if each != "--recorded"]
    main(given or list(TARGETS), "--recorded" in sys.argv)
