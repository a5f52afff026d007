"""Compiles the training steps of the striped attention paper's measured rows on TPU v4, for `stripectl accuracy` to set
their predicted speed-ups beside those that were measured.

    python benchmarks/paper_steps.py          # half an hour on two cores; what the file has is not compiled again

Kernel xla, tiles of 2048 rows and keys, as the paper's (`profiles/published/striped-kernel.yaml`).
"""

import json
from pathlib import Path
from typing import Any

from stripectl.analysis.accuracy import compiled_steps
from stripectl.analysis.accuracy.steps import step_workload
from stripectl.compile.compiler import CompilerPool
from stripectl.core.plan import parse_plan
from stripectl.hardware.target import parse_target
from stripectl.results.records import record_json
from stripectl.workers.worker_group import WorkerError

FILE = Path(__file__).parents[1] / "profiles" / "compiled" / compiled_steps.FILE
TOLD = ("beside", "collectives", "cycles", "peak_bytes", "compiler")


def main() -> None:
    kept = json.loads(FILE.read_text()) if FILE.exists() else []
    known = {(each["plan"], each["seq_len"]): each for each in kept}
    with CompilerPool(lambda *_: None) as compilers:
        for row in compiled_steps.measured_rows():
            for plan in row.plans:
                if (plan, row.seq_len) not in known:
                    known[plan, row.seq_len] = compiled(compilers, row.model, row.seq_len, plan)
                    lines = ",\n".join(json.dumps(each) for each in known.values())
                    FILE.write_text(f"[\n{lines}\n]\n")
                    print(plan, row.seq_len, known[plan, row.seq_len]["beside"], flush=True)


def compiled(compilers: CompilerPool, model: str, seq_len: int, plan: str) -> dict[str, Any]:
    """What the compiler says of a step's program beside its attention, and of its collectives."""
    case: dict[str, Any] = {"model": model, "seq_len": seq_len, "plan": plan}
    try:
        target = parse_target(compiled_steps.TARGET)
        report = compilers.report(step_workload(model, seq_len), parse_plan(plan), target, {})
    except WorkerError as failure:
        return case | {"failed": str(failure)}
    program = record_json(report.program)
    told = {name: program[name] for name in TOLD if name in program}
    return case | told | {"peak_bytes": report.peak_bytes, "refused": report.refused}


if __name__ == "__main__":
    main()
