"""The striped attention paper's theoretical speed-ups against its published table."""

import csv

import pytest

from stripectl.analysis.striped_attention_paper import theoretical_max_speedup
from stripectl.util.files import data_folder

PUBLISHED = list(
    csv.DictReader((data_folder("profiles") / "published" / "striped-attention.csv").read_text().splitlines())
)


def test_all_published_rows_are_there() -> None:
    assert len(PUBLISHED) == 137


@pytest.mark.parametrize("row", PUBLISHED, ids=lambda row: "-".join([*list(row.values())[:5]]))
def test_tms_reproduces_the_paper(row: dict[str, str]) -> None:
    cost = 2.0 if row["hw"] == "A100" else 1.0
    model, seq_len, ring = row["model"].lower(), int(row["n_seq"]), int(row["sp"])
    found = theoretical_max_speedup(model=model, seq_len=seq_len, ring=ring, attention_cost=cost, mlp="paper")
    assert found == pytest.approx(float(row["tms_published"]), abs=0.005)


def test_swiglu_counts_three_matrices() -> None:
    both = [theoretical_max_speedup(model="1b", seq_len=2**18, ring=8, mlp=mlp) for mlp in ("paper", "swiglu")]
    assert 1 < both[1] < both[0]
