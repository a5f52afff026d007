"""The scheme `halo`: windows that reach one or more runs before a run, and the plans that it refuses."""

import pytest

from stripectl.core.layout import Halo
from stripectl.core.sequence_sharding import sequence_sharding
from stripectl.core.validation import why_unsupported
from stripectl.core.workload import Workload
from tests.support.exact import check
from tests.support.plans import reference_plan as parse_plan

ROWS = 24
CASES = [  # layout, shards, window, key/value heads, documents, dtype
    ("contiguous", 2, 2, 4, None, "float32"),
    ("contiguous", 4, ROWS + 1, 2, (50, 7, 20), "float32"),  # all of the run before
    ("contiguous", 4, ROWS + 2, 1, None, "bfloat16"),  # and one token more
    ("contiguous", 8, 5 * ROWS - 3, 2, (50, 7, 20), "float32"),  # five runs
    ("contiguous", 4, 3 * ROWS, 4, None, "float32"),  # nearly all
    ("contiguous", 1, 37, 4, (50, 7, 20), "float32"),
    ("zigzag", 2, ROWS // 2, 4, None, "float32"),
    ("zigzag", 3, ROWS // 2 + 1, 2, (50, 7, 20), "bfloat16"),
    ("zigzag", 4, ROWS // 2 + 2, 1, (50, 7, 20), "float32"),
    ("zigzag", 8, 3 * ROWS + 5, 2, None, "float32"),  # seven of 16 runs, on both sides of the turn
    ("zigzag", 8, 3 * ROWS + 5, 1, (50, 7, 20), "float32"),
    ("zigzag", 1, 37, 4, None, "float32"),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_values_and_gradients_equal_dense_attention(case: tuple) -> None:
    layout, shards, window, kv_heads, documents, dtype = case
    work = Workload(
        seq_len=ROWS * max(2, shards),
        heads=4,
        kv_heads=kv_heads,
        head_dim=8,
        dtype=dtype,
        mask=f"sliding:{window}",
        documents=documents,
        passes="forward-backward",
    )
    check(work, parse_plan(f"halo/{layout}/xla@ring={shards},tile=10x7"))


def windowed(mask: str = "sliding:1k") -> Workload:
    return Workload(seq_len=2**14, heads=8, kv_heads=8, head_dim=64, mask=mask)


def test_a_window_reaches_as_many_runs_as_it_needs() -> None:
    def halos(layout: str, mask: str) -> list[Halo]:
        return sequence_sharding(windowed(mask), parse_plan(f"halo/{layout}@ring=8")).halos()

    assert halos("contiguous", "sliding:1k") == [Halo(1, 1023)]
    assert halos("contiguous", "sliding:2049") == [Halo(1, 2048)]
    assert halos("contiguous", "sliding:5000") == [Halo(1, 2048), Halo(2, 2048), Halo(3, 903)]
    assert halos("zigzag", "sliding:1025") == [Halo(1, 1024)]
    assert halos("zigzag", "sliding:1026") == [Halo(1, 1024), Halo(2, 1)]
    assert halos("contiguous", "sliding:1") == []
    assert sequence_sharding(windowed(), parse_plan("halo/contiguous@ring=1")).halos() == []


REFUSED = {
    ("halo/striped@ring=8", "sliding:1k"): "halo does not run on the striped layout, because its shards are no runs of "
    "adjacent tokens. Try contiguous or zigzag.",
    ("halo/contiguous@ring=8", "causal"): "halo sends the keys that a window reaches, and a causal mask has no window. "
    "Try --scheme ring.",
    ("halo/zigzag@ring=8", "full"): "halo sends the keys that a window reaches, and a full mask has no window. "
    "Try --scheme ring.",
    ("halo/contiguous@ring=8", "sliding:14337"): "a window of 14,337 tokens reaches 14,336 rows before each run of "
    "2,048, and halo would send no fewer than a ring of 8. Try --scheme ring.",
    ("halo/zigzag@ring=2", "sliding:4097"): "a window of 4,097 tokens reaches 4,096 rows before each run of 4,096, and "
    "halo would send no fewer than a ring of 2. Try --scheme ring.",
    ("halo/contiguous@ring=4,ulysses=2", "sliding:1k"): "halo has no axis ulysses; it uses ring. Try ulysses=1.",
}


@pytest.mark.parametrize(("plan", "mask"), REFUSED)
def test_refusals_say_why(plan: str, mask: str) -> None:
    assert str(why_unsupported(parse_plan(plan), windowed(mask), "cpu")) == REFUSED[plan, mask]


@pytest.mark.parametrize(
    ("plan", "mask"),
    [
        ("halo/contiguous@ring=8", "sliding:14336"),
        ("halo/zigzag@ring=2", "sliding:4096"),
        ("halo/zigzag@ring=1", "sliding:4k"),
    ],
)
def test_a_window_that_reaches_fewer_keys_is_supported(plan: str, mask: str) -> None:
    assert why_unsupported(parse_plan(plan), windowed(mask), "cpu") is None


def test_only_softmax_attention_has_halos() -> None:
    work = windowed()
    assert why_unsupported(parse_plan("halo/contiguous/chunked@ring=8"), work, "cpu")
    assert why_unsupported(parse_plan("halo/contiguous/dense@ring=8"), work, "cpu")
