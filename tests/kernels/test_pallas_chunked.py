"""Linear attention with a constant decay in Pallas kernels for TPUs, interpreted on a CPU, against float64 token by
token. tests/compile/test_bundles.py compiles them for TPUs."""

import itertools

import jax
import pytest

from stripectl.core.kernel import kernels
from stripectl.core.layout import Tile
from stripectl.core.plan import Plan, parse_plan
from stripectl.core.sequence_sharding import sequence_sharding
from stripectl.core.validation import why_unsupported
from stripectl.core.workload import Workload
from stripectl.costs.cost_model import COUNTING
from stripectl.costs.defaults import with_names
from stripectl.execute.program import PlanProgram
from stripectl.hardware.profile import Hardware
from stripectl.kernels.pallas_chunked import squares
from stripectl.simulate.simulation import simulate
from tests.support.exact import check
from tests.support.jaxprs import jaxpr_bytes


def workload(plan: Plan, **change) -> Workload:
    usual = {
        "seq_len": 48 * max(2, plan.devices),
        "heads": 4,
        "kv_heads": 4,
        "head_dim": 16,
        "dtype": "float32",
        "attention": "linear",
        "passes": "forward-backward",
    }
    return Workload(**usual | change)


QUICK = [
    ("lasp/contiguous@ring=4,tile=16", {"decay": "per-head"}),  # parts of the heads, of which some are empty
]
CASES = [
    ("ring/zigzag@ring=2,tile=16", {"kv_heads": 2, "dtype": "bfloat16"}),  # squares of all three kinds
    ("memory_efficient/contiguous@tile=32", {"decay": "0.9", "batch": 2}),  # padded to whole chunks
    ("lasp/contiguous@ring=3,tile=32", {"decay": "0.9", "kv_heads": 1, "batch": 3}),
    ("lasp/contiguous@ring=3,tile=16", {"mask": "full"}),
    ("lasp2/contiguous@ring=2,data=2,tile=48", {"decay": "per-head", "batch": 2, "dtype": "bfloat16"}),
    ("lasp2/contiguous@ring=2,tensor=2,tile=16", {"decay": "per-head", "features": "elu"}),
    ("linear_scan/contiguous@ring=4,tile=16,states=recomputed", {"decay": "per-head"}),
    ("ring/contiguous@ring=3,tile=16", {"decay": "0.9", "kv_heads": 2}),
    ("ring/striped@ring=3,tile=16", {}),
    ("ring/zigzag@ring=2,tile=16", {"mask": "full"}),
    ("bidirectional/striped@ring=2,tile=16", {}),
    ("all_gather/contiguous@ring=2,tile=16,parts=3", {"decay": "per-head"}),
    ("all_gather/striped@ring=2,tile=16,parts=3", {"kv_heads": 2}),
    ("ulysses/contiguous@ulysses=2,tile=16", {"decay": "per-head", "kv_heads": 2, "dtype": "bfloat16"}),
]


def planned(text: str) -> Plan:
    names, _, options = text.partition("@")
    return parse_plan(f"{names}/pallas_chunked@{options}")


@pytest.mark.parametrize(
    ("text", "change"), [*QUICK, *(pytest.param(*case, marks=pytest.mark.exactness) for case in CASES)]
)
def test_values_and_gradients_are_the_recurrences(text: str, change: dict) -> None:
    plan = planned(text)
    work = workload(plan, **change)
    check(work, plan)


@pytest.mark.parametrize("scheme", ["lasp", "lasp2", "linear_scan"])
def test_states_alone_are_sent_as_with_chunked(scheme: str) -> None:
    """In the program as in the simulation, and as many bytes at any length."""
    sent = []
    for kernel, seq_len in (("pallas_chunked", 2**10), ("pallas_chunked", 2**12), ("chunked", 2**12)):
        plan = parse_plan(f"{scheme}/contiguous/{kernel}@ring=4,tile=64")
        work = workload(plan, seq_len=seq_len, decay="per-head", dtype="bfloat16")
        sent.append(jaxpr_bytes(PlanProgram(work, plan, jax.devices())))
        assert sent[-1] == simulate(work, plan, COUNTING).sent
    assert sent[0] == sent[1] == sent[2] and sum(sent[0].values()) > 0


@pytest.mark.parametrize("layout", ["contiguous", "striped", "zigzag"])
@pytest.mark.parametrize("mask", ["causal", "full"])
def test_squares_hold_all_scores_on_the_diagonal_or_none(layout: str, mask: str) -> None:
    plan = parse_plan(f"ring/{layout}/chunked@ring=4,tile=16")
    sharding = sequence_sharding(workload(plan, mask=mask), plan)
    for me, src, part in itertools.product(range(4), range(4), [(0, 1), (0, 2), (1, 2), (5, 6)]):
        bands = sharding.bands(me, src, part)
        found = squares(bands)
        assert sum(x.rows * x.cols for x in found) == sum(x.rows * x.cols for x in bands)
        for square in found:
            assert square.high in (0, -1) or square.high >= square.cols - 1 or square.high <= -square.rows


def test_a_chunk_on_the_diagonal_counts_once() -> None:
    """A ring's own shard has 3 chunks on the diagonal, and an earlier shard 3 of keys and 3 that read their state."""
    plan = planned("ring/contiguous@ring=2,tile=16")
    own, earlier = simulate(workload(plan, passes="forward"), plan, COUNTING).rounds
    assert [int(kind[1]) for kind in own.tiles[:4]] == [0, 3, 0, 0]
    assert [int(kind[1]) for kind in earlier.tiles[:4]] == [3, 0, 0, 3]


@pytest.mark.parametrize(
    ("kind", "text", "change", "why"),
    [
        ("cpu", "lasp/contiguous@ring=2,tile=32", {}, "Try --kernel chunked"),
        ("tpu", "lasp/contiguous@ring=2,tile=24", {}, "multiples of 16"),
        ("tpu", "lasp/contiguous@ring=2,tile=512", {}, "at most 256 rows"),
        ("tpu", "lasp/contiguous@ring=2,tile=32x16", {}, "Try tile=16"),
        ("tpu", "ring/striped@ring=2,tile=32", {"decay": "0.9"}, "needs adjacent tokens"),
        ("tpu", "lasp/contiguous@ring=2,tile=32", {}, None),
    ],
)
def test_refusals_have_reasons(kind: str, text: str, change: dict, why: str | None) -> None:
    plan = planned(text)
    reason = why_unsupported(plan, workload(plan, seq_len=1024, **change), kind)
    assert (reason is None) if why is None else (why in str(reason))


@pytest.mark.parametrize(
    ("rows", "kernel", "tile"), [(4096, "pallas_chunked", Tile(128, 128)), (8, "pallas_chunked", Tile(16, 16))]
)
def test_it_is_the_usual_kernel_of_tpus_where_it_runs(rows: int, kernel: str, tile: Tile) -> None:
    plan = parse_plan("lasp2/contiguous@ring=4")
    work = workload(plan, seq_len=4 * rows, decay="per-head")
    usual = with_names(plan, work, Hardware.load("v5e"))
    assert usual.kernel == kernel
    assert kernels[usual.kernel].largest_tile(kernels[usual.kernel].default_tile("tpu"), rows) == tile
