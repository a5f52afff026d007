"""The striped attention paper's training speed-ups on 16 TPU v4 chips, beside predictions from plans compiled here.

python benchmarks/paper_v4.py            the kernels xla (as the paper's: tiles in plain JAX) and splash; no TPU needed

Attention of a layer, forward and backward, is compiled for v4:2x2x4 on the paper's mesh and its time predicted from the
compiler's estimates. The rest of a layer are the dense terms of the paper's TMS, three times (forward, and two for the
backward pass) at the chip's peak rate. Nothing is fitted to the published speed-ups.
"""

import csv
import statistics
import sys

from stripectl.compile.compiler import CompilerPool, compile_case
from stripectl.core.model import Model
from stripectl.core.plan import parse_plan
from stripectl.core.workload import Workload
from stripectl.hardware.target import parse_target
from stripectl.models.model_files import load_model
from stripectl.results.case import Case
from stripectl.runner.static_facts import with_static_facts
from stripectl.util.files import data_folder

TILES = {"xla": "2048x4096", "splash": "1024x1024"}  # the paper's (section 3.1), and the library's
TARGET = parse_target("v4:2x2x4")


def attention_s(compilers: CompilerPool, model: Model, layout: str, kernel: str, row: dict[str, str]) -> float | None:
    """Predicted seconds of a layer's attention, forward and backward."""
    workload = Workload(
        seq_len=int(row["n_seq"]),
        heads=model.heads,
        kv_heads=model.kv_heads,
        head_dim=model.head_dim,
        passes="forward-backward",
    )
    plan = parse_plan(f"ring/{layout}/{kernel}@ring={row['sp']},tensor={row['mp']},tile={TILES[kernel]}")
    case = Case(workload=workload, plan=plan, target=TARGET.name, method="compiled")
    found = compile_case(with_static_facts(case, TARGET.hardware), TARGET, compilers)
    if found.status != "ok":
        print(f"{plan} at {workload.seq_len}: {found.reason}", file=sys.stderr)
    return found.median_s


def main() -> None:
    model = load_model("1b")
    peak = TARGET.hardware.flops_per_s("bfloat16") or 1.0
    d = model.hidden
    dense = 8 * d * d + 4 * d * model.feed_forward + 2 * d * model.vocabulary / model.layers  # TMS, FLOPs a token
    table = (data_folder("profiles") / "published" / "striped-attention.csv").read_text().splitlines()
    rows = [row for row in csv.DictReader(table) if (row["hw"], row["model"]) == ("TPUv4", "1B")]
    errors: dict[str, list[float]] = {kernel: [] for kernel in TILES}
    heads = "tokens | ring x tensor | TMS | measured (paper)"
    print(f"| {heads} | xla: attention | layer | error | splash: attention | layer | error |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    with CompilerPool(lambda *_: None) as compilers:
        for row in rows:
            dense_s = 3 * dense * int(row["n_seq"]) / (int(row["sp"]) * int(row["mp"])) / peak
            cells = [row["n_seq"], f"{row['sp']} x {row['mp']}", row["tms_published"], row["speedup_measured"]]
            for kernel in TILES:
                slow, fast = (attention_s(compilers, model, each, kernel, row) for each in ("contiguous", "striped"))
                if slow is None or fast is None:
                    cells += ["n/a"] * 3
                    continue
                layer = (dense_s + slow) / (dense_s + fast)
                errors[kernel].append(layer / float(row["speedup_measured"]) - 1)
                cells += [f"{slow / fast:.2f}", f"{layer:.2f}", f"{errors[kernel][-1]:+.0%}"]
            print("| " + " | ".join(cells) + " |", flush=True)
    for kernel, found in errors.items():
        if found:
            print(
                f"{kernel}: median error {statistics.median(found):+.0%}, from {min(found):+.0%} to {max(found):+.0%}"
            )


if __name__ == "__main__":
    main()
