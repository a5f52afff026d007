"""Workloads in one line, as people read them."""

import pytest

from stripectl.core.workload import Workload
from stripectl.results.labels import workload_label


@pytest.mark.parametrize(
    ("heads", "kv_heads", "label"),
    [(1, 1, "1 head of 128"), (4, 4, "4 heads of 128"), (4, 1, "4 heads (1 kv) of 128")],
)
def test_heads_are_counted_in_the_singular_or_the_plural(heads: int, kv_heads: int, label: str) -> None:
    workload = Workload(seq_len=4096, heads=heads, kv_heads=kv_heads, head_dim=128)
    assert workload_label(workload).startswith(f"4k tokens, {label}, ")
