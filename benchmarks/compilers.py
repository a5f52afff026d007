"""Two TPU compilers side by side: the same striped rings, compiled ahead of time by each.

    python benchmarks/compilers.py measure OUT.json      # the libtpu of this Python; about 5 minutes, no TPU needed
    python benchmarks/compilers.py table A.json B.json   # what both files hold, as a Markdown table

A tile costs bundles where a Pallas kernel computes it (with its step of the grid, the kernels of a pass added up) and
estimated cycles where XLA does; "other" is estimated cycles of all that is no tile, but for branches that only live
rectangles take. A row of forward-backward shows its backward pass. JAX may differ between the Pythons, too.
"""

import json
import platform
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import mean
from typing import Any

from stripectl.compile.compiler import CompilerPool, compile_case
from stripectl.core.kernel import kernels
from stripectl.core.plan import parse_plan
from stripectl.core.workload import Workload
from stripectl.hardware.target import parse_target
from stripectl.measure.local_target import LocalTarget
from stripectl.results.compiled_program import CompiledProgram
from stripectl.results.environment import version
from stripectl.results.measurement import Measurement
from stripectl.runner.cases import bench_cases
from stripectl.runner.request import Request
from stripectl.util.output import write_atomically
from stripectl.util.units import duration, nbytes

TARGETS = ("v5e:2x4", "v5p:2x2x2", "v6e:2x4", "tpu7x:2x2x1")  # of eight devices each
KERNELS, PASSES = ("xla", "splash", "pallas_tpu"), ("forward", "forward-backward")
COUNTS = ("whole", "boundary", "row", "other")
WRITTEN: dict[str, Callable[[Any], str]] = dict.fromkeys(COUNTS, "{:,.0f}".format) | {
    "predicted_s": duration,
    "peak_bytes": nbytes,
    "sent_bytes": nbytes,
    "compile_s": duration,
}


def costs(program: CompiledProgram, kernel: str, passes: str) -> dict[str, float]:
    """Of a pass, by `COUNTS`; without tiles where the compiler's dump cannot be read."""
    found = (program.cycles or {})[passes]
    if not kernels[kernel].costs.bundles:
        return {name: found[name] for name in COUNTS}
    total = dict.fromkeys(COUNTS, 0.0) | {"other": found["other"]}
    for part in kernels[kernel].costs.bundles[passes]:
        alike = [each for each in program.bundles or () if part.name in each.name]
        if not alike:
            return {"other": found["other"]}
        masked = [each for each in alike if each.masked] or alike
        unmasked = [each for each in alike if not each.masked] or alike
        total["whole"] += mean(each.tile + each.step for each in (masked if part.only_live else unmasked))
        total["boundary"] += mean(each.boundary + each.step for each in masked)
        total["row"] += mean(each.row for each in masked)
    return total


def told(found: Measurement, case: str, kernel: str) -> dict[str, Any]:
    """What the compiler says of one program; what it does not say is None."""
    program = found.compiled_program or CompiledProgram()
    sent = program.collectives
    return {
        "case": case,
        "status": found.status,
        "reason": str(found.reason) if found.reason else None,
        "predicted_s": found.median_s,
        "peak_bytes": found.peak_bytes,
        "costs_from": found.cost_source and found.cost_source.source,
        "costs": {passes: costs(program, kernel, passes) for passes in program.cycles or {}},
        "transfers": sum(each.times for each in sent),
        "hidden": sum(each.times for each in sent if each.asynchronous and each.beside_tiles),
        "copies_per_round": program.copies and program.copies.per_round,
        "sent_bytes": sum(found.bytes.values()) if found.bytes else None,
        "rewrites": {each.name: each.transfers for each in program.rewrites},
        "compile_s": found.compile_s,
    }


def measure(path: Path) -> None:
    versions = {"python": platform.python_version()} | {name: version(name) for name in ("jax", "jaxlib", "libtpu")}
    workloads = [Workload(seq_len=2**14, heads=4, kv_heads=4, head_dim=128, passes=each) for each in PASSES]
    plans = [parse_plan(f"ring/striped/{kernel}@ring=8,tile=1024") for kernel in KERNELS]
    every = list[dict[str, Any]]()
    with CompilerPool(lambda *_: None, cached=False) as compilers:
        for target in map(parse_target, TARGETS):
            for case in bench_cases(Request(workloads=workloads, plans=plans), LocalTarget(target)):
                kernel, passes = case.plan.kernel, case.workload.passes
                every.append(told(compile_case(case, target, compilers), f"{target}, {kernel}, {passes}", kernel))
                print(*every[-1].values(), flush=True)
                write_atomically(path, json.dumps({"versions": versions, "cases": every}, indent=1) + "\n")


def columns(found: Mapping[str, Any]) -> dict[str, Any]:
    """Without the time to compile, which follows what else the machine does."""
    tiles = found["costs"].get("backward", found["costs"].get("forward", {}))
    return {name: each for name, each in {**found, **tiles}.items() if name not in ("case", "costs", "compile_s")}


def both(ours: Any, theirs: Any, written: Callable[[Any], str]) -> str:
    """One value where they are alike; otherwise both, and the second over the first."""
    first, second = ("n/a" if each is None else written(each) for each in (ours, theirs))
    ratio = f" ({theirs / ours:.2f})" if isinstance(ours, int | float) and isinstance(theirs, int | float) else ""
    return first if first == second else f"{first}, {second}{ratio}"


def table(*paths: Path) -> None:
    ours, theirs = ({each["case"]: columns(each) for each in json.loads(path.read_text())["cases"]} for path in paths)
    names = list(next(iter(ours.values())))
    differ = [name for name in names if any(theirs[case].get(name) != ours[case].get(name) for case in ours)]
    print(f"| {' | '.join(['case', *differ])} |\n|---{'|---' * len(differ)}|")
    for case in ours:
        shown = (both(ours[case].get(name), theirs[case].get(name), WRITTEN.get(name, str)) for name in differ)
        print(f"| {' | '.join([case, *shown])} |")
    print(f"\nAlike in every case: {', '.join(name for name in names if name not in differ)}.")


if __name__ == "__main__":
    {"measure": measure, "table": table}[sys.argv[1]](*map(Path, sys.argv[2:]))
