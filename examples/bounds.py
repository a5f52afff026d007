"""How much can striped attention gain over ring attention? The arithmetic beside the paper's measurements.

python examples/bounds.py            every published row of the 1B model on TPU v4
python examples/bounds.py 7B A100    another model and machine
"""

import csv
import sys

from stripectl.analysis.striped_attention_paper import theoretical_max_speedup
from stripectl.util.files import data_folder

model, machine = sys.argv[1:3] if len(sys.argv) > 2 else ("1B", "TPUv4")
rows = csv.DictReader((data_folder("profiles") / "published" / "striped-attention.csv").read_text().splitlines())
print(f"{'tokens':>8} {'ring':>4} {'block':>7} {'TMS':>5} {'SwiGLU':>6} {'measured':>8}")
for row in rows:
    if (row["model"], row["hw"]) == (model, machine):
        what = {"model": model.lower(), "seq_len": int(row["n_seq"]), "ring": int(row["sp"])}
        cost = 2.0 if machine == "A100" else 1.0
        paper, swiglu = (theoretical_max_speedup(**what, attention_cost=cost, mlp=mlp) for mlp in ("paper", "swiglu"))
        size = f"{row['n_seq']:>8} {row['sp']:>4} {row['block']:>7}"
        print(f"{size} {paper:5.2f} {swiglu:6.2f} {row['speedup_measured']:>8}")
