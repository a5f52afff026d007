"""The memory of plans as their compilers say it, for `stripectl accuracy` to compare with what is predicted.

    python benchmarks/memory.py          # an hour on two cores; what the file has is not compiled again

Attention alone and training steps of seven models, three lengths, two generations of TPUs and a GPU.
"""

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stripectl.analysis.accuracy import memory as accuracy
from stripectl.compile.compiler import CompilerPool
from stripectl.core.plan import parse_plan
from stripectl.core.workload import STEP
from stripectl.costs.defaults import with_defaults
from stripectl.hardware.target import parse_target, read_target
from stripectl.workers.worker_group import WorkerError

FILE = Path(__file__).parents[1] / "profiles" / "compiled" / accuracy.FILE
ATTENTION = [
    ("1b", 2**15, "v5p:2x2x4", "pallas_tpu"),
    ("1b", 2**18, "v5p:2x2x4", "pallas_tpu"),
    ("llama3-8b", 2**17, "v6e:4x4", "pallas_tpu"),
    ("llama3-8b", 2**20, "v6e:4x4", "pallas_tpu"),
    ("llama3-8b", 2**17, "v5p:2x2x4", "splash"),
    ("llama3-8b", 2**17, "h100:8", "xla"),
    ("1b", 2**15, "h100:8", "xla"),
]
SCHEMES = [
    ("ring", "striped"),
    ("ring", "zigzag"),
    ("bidirectional", "striped"),
    ("all_gather", "contiguous"),
    ("ulysses", "contiguous"),
    ("usp", "striped"),
]
STEPS = [
    ("1b", 2**15, "v6e:4x4", ["ring/striped@ring=4,fsdp=4", "ring/striped@ring=16", "usp/striped@ring=4,ulysses=4"]),
    ("1b", 2**15, "h100:8", ["ring/striped@ring=8", "all_gather/contiguous@ring=4,fsdp=2"]),
    ("7b", 2**17, "v5p:2x2x4", ["ring/striped@ring=16", "ring/striped@ring=4,tensor=4", "ring/striped@ring=8,fsdp=2"]),
    (
        "7b",
        2**18,
        "v5p:2x2x4",
        ["ring/striped@ring=16", "ring/striped@ring=8,tensor=2", "ulysses/contiguous@ulysses=16"],
    ),
    (
        "llama3-8b",
        2**15,
        "v5p:2x2x4",
        ["ring/zigzag@ring=4,fsdp=4", "ring/zigzag@ring=16", "ring/zigzag@ring=16,zero=0"],
    ),
    ("llama3-8b", 2**17, "v5p:2x2x4", ["usp/striped@ring=4,ulysses=4", "all_gather/contiguous@ring=16"]),
    ("llama3-8b", 2**17, "v6e:4x4", ["ring/striped@ring=16,remat=attention", "ring/striped@ring=16,chunk=1024"]),
    ("llama3-8b", 2**18, "v5p:2x2x4", ["ring/striped@ring=16,remat=full", "ring/striped@ring=16,remat=dots"]),
    ("llama3-8b", 2**17, "h100:8", ["ring/striped@ring=8", "ring/striped@ring=4,tensor=2"]),
    (
        "llama3-8b",
        2**17,
        "v5p:2x2x4",
        [f"ring/striped@ring=16,remat={remat}" for remat in ("full", "attention", "dots", "none")],
    ),
    (
        "llama3-8b",
        2**15,
        "v6e:4x4",
        [f"ring/striped@ring=4,fsdp=4,remat={remat}" for remat in ("full", "attention", "dots", "none")],
    ),
    ("1b", 2**15, "h100:8", [f"ring/striped/xla@ring=8,remat={remat}" for remat in ("attention", "dots", "none")]),
    (
        "llama3-8b",
        2**13,
        "v5p:2x2x4",
        [f"ring/striped@fsdp=16,remat={remat}" for remat in ("full", "attention", "none")],
    ),
    (
        "llama3-8b",
        2**15,
        "v5p:2x2x4",
        ["ring/striped@ring=16,chunk=0", "megatron_sp/contiguous@tensor=8,data=2"],
    ),
    ("llama3-70b", 2**17, "v5p:4x4x4", ["ring/striped@ring=64", "ring/striped@ring=8,tensor=8"]),
    ("llama3-70b", 2**18, "v5p:4x4x4", ["ring/striped@ring=16,tensor=4", "usp/striped@ring=8,ulysses=8"]),
    ("linear-llama-1b-hybrid", 2**15, "v6e:4x4", ["lasp2@ring=16", "lasp2@ring=8,fsdp=2"]),
    ("mamba-codestral-7b", 2**17, "v5p:2x2x4", ["lasp2/contiguous/pallas_gated@ring=16"]),
    (
        "qwen3-next-80b-a3b",
        2**18,
        "v5p:4x4x4",
        ["lasp2/contiguous/pallas_gated@ring=16,tensor=2,softmax=ring/zigzag/splash"],
    ),
]


def cases() -> Iterator[dict[str, Any]]:
    """Everything that is compiled: model, length, pass, target and plan; steps last."""
    for (model, length, target, kernel), (scheme, layout), passes in itertools.product(
        ATTENTION, SCHEMES, ("forward", "forward-backward")
    ):
        devices = parse_target(target).devices
        meshes = {"usp": f"ring={devices // 4},ulysses=4", "ulysses": f"ulysses={devices}"}
        if scheme == "ulysses" and model == "llama3-8b" and devices > 8:
            meshes["ulysses"] = "ulysses=8"
        plan = f"{scheme}/{layout}/{kernel}@{meshes.get(scheme, f'ring={devices}')}"
        yield {"model": model, "seq_len": length, "passes": passes, "target": target, "plan": plan}
    for model, length, target, plans in STEPS:
        for plan in plans:
            kernel = {"v5p": "splash", "v6e": "pallas_tpu"}.get(read_target(target).hardware)
            has_layout_only = plan.partition("@")[0].count("/") == 1
            named = plan.replace("@", f"/{kernel}@") if has_layout_only and kernel else plan
            yield {"model": model, "seq_len": length, "passes": STEP, "target": target, "plan": named}


def main() -> None:
    known = json.loads(FILE.read_text()) if FILE.exists() else []
    have = {
        json.dumps({name: each[name] for name in ("model", "seq_len", "passes", "target", "plan")}) for each in known
    }
    with CompilerPool(lambda *_: None) as compilers:
        for case in cases():
            if json.dumps(case) in have:
                continue
            target, work = parse_target(case["target"]), accuracy.CompiledMemory(**case, made=case["plan"]).workload
            plan = with_defaults(parse_plan(case["plan"]), work, target.hardware)
            try:
                report = compilers.report(work, plan, target, {})
                told = {"peak_bytes": report.peak_bytes, "refused": report.refused}
            except WorkerError as error:
                told = {"peak_bytes": None, "refused": str(error)}
            found = {name: value for name, value in told.items() if value is not None}
            known.append(case | {"made": str(plan)} | found)
            FILE.write_text("[\n" + ",\n".join(map(json.dumps, known)) + "\n]\n")
            print(case, found, flush=True)


if __name__ == "__main__":
    main()
