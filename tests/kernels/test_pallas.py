"""Pallas kernels for TPUs: interpreted on a CPU against dense attention. tests/compile/test_bundles.py compiles them
for TPUs."""

import itertools
import random
import sys
from dataclasses import replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

import stripectl.compat as compat
from stripectl.core.kernel import kernels
from stripectl.core.layout import UNBOUNDED, MaskBlock, Tile, Window, layouts, parse_tile
from stripectl.core.plan import parse_plan
from stripectl.core.scheme import schemes
from stripectl.core.validation import why_unsupported
from stripectl.core.workload import ATTENTION_PASSES, DTYPES, Workload
from stripectl.costs.defaults import with_names
from stripectl.errors import BadInput, Missing
from stripectl.execute.verification import cut_to_checkable
from stripectl.hardware.profile import Hardware
from stripectl.kernels.pallas_tpu import grid, lines, tiles
from tests.support.exact import check, cover_in_parts, covering, each_choice, in_parts, on_devices, pairs
from tests.support.kernels import check_rectangles
from tests.support.plans import with_tile

KERNELS = ["splash", "pallas_tpu", "pallas_bounded"]
FACTORS = {
    "kernel": KERNELS,
    "scheme": schemes.names(),
    "layout": layouts.names(),
    "mask": ["causal", "full", "sliding:100"],
    "passes": list(ATTENTION_PASSES),
    "dtype": list(DTYPES),
    "kv_heads": [4, 2],
    "batch": [1, 2],
    "devices": [1, 2, 4],
    "tile": ["128x128", "128x256x128"],
    "odd_rows": [0, 22],  # of a shard, beyond a multiple of the tile
}


def case_of(kernel, scheme, layout, mask, passes, dtype, kv_heads, batch, devices, tile, odd_rows) -> tuple:
    workload = Workload(
        seq_len=(layouts[layout].pieces * max(256 // layouts[layout].pieces, parse_tile(tile).block_kv) + odd_rows)
        * devices,
        batch=batch,
        heads=4,
        kv_heads=kv_heads,
        head_dim=64,
        dtype=dtype,
        mask=mask,
        passes=passes,
    )
    mesh = on_devices(scheme, devices).mesh
    return workload, replace(parse_plan(f"{scheme}/{layout}/{kernel}@tile={tile}"), mesh=mesh)


def legal(case: tuple) -> bool:
    workload, plan = case_of(*case)
    return why_unsupported(plan, workload, "tpu") is None and plan.devices == case[-3]


def pairs_of_case(case: tuple) -> set:
    """Schemes meet kernels; how a scheme meets the rest changes no kernel."""
    kernel, scheme, *rest = case
    return pairs((kernel, *rest)) | {(kernel, scheme)}


PRODUCT = list(itertools.product(*FACTORS.values()))  # to ask which cases are legal takes seconds
CASES = list(filter(legal, random.Random(0).sample(PRODUCT, 3000)))  # they hold every pair that the legal product does


def methods_of_case(case: tuple) -> set:
    """Kernels meet layouts; of the rest each choice once, but for schemes."""
    kernel, _, layout, *rest = case
    return {(kernel, layout)} | each_choice((kernel, layout, *rest))


def work_of(case: tuple) -> int:
    """How much is interpreted: devices, in each pass."""
    workload, plan = case_of(*case)
    return plan.devices * (1 + 2 * (workload.passes != "forward"))


COVER = cover_in_parts(CASES, pairs_of_case, methods_of_case, work_of)


@pytest.mark.parametrize(tuple(FACTORS), [pytest.param(*case, marks=marks) for case, marks in COVER])
def test_equals_dense_attention(
    kernel, scheme, layout, mask, passes, dtype, kv_heads, batch, devices, tile, odd_rows
) -> None:
    check(*case_of(kernel, scheme, layout, mask, passes, dtype, kv_heads, batch, devices, tile, odd_rows))


@pytest.mark.parametrize(
    ("head_dim", "dtype"),
    [
        pytest.param(*case, marks=() if case == (192, "float32") else pytest.mark.exactness)
        for case in itertools.product((128, 192, 256), DTYPES)
    ],
)
def test_pallas_tpu_has_heads_of_several_sizes(head_dim: int, dtype: str) -> None:
    workload = Workload(seq_len=512, heads=2, kv_heads=1, head_dim=head_dim, dtype=dtype, passes="forward-backward")
    check(workload, parse_plan("ring/striped/pallas_tpu@ring=2,tile=128x256"))


@pytest.mark.parametrize(
    "kernel", [pytest.param(name, marks=() if name == "pallas_tpu" else pytest.mark.exactness) for name in KERNELS]
)
def test_the_backward_pass_may_have_a_tile_of_its_own(kernel: str) -> None:
    workload = Workload(seq_len=512, heads=2, kv_heads=1, head_dim=64, dtype="float32", passes="forward-backward")
    check(workload, parse_plan(f"ring/striped/{kernel}@ring=2,tile=256,backward=128x256"))


WITH_PARTS = ("pallas_tpu", "pallas_bounded")
CORNERS = covering(list(itertools.product(WITH_PARTS, layouts.names(), ("causal", "sliding:200"))))


@pytest.mark.parametrize(
    ("kernel", "layout", "mask"),
    [
        pytest.param(*case, marks=() if case == ("pallas_tpu", "zigzag", "causal") else pytest.mark.exactness)
        for case in CORNERS
    ],
)
def test_tiles_on_the_diagonal_leave_out_dead_parts(kernel: str, layout: str, mask: str, monkeypatch) -> None:
    """Where the diagonal of every pair of shards runs through corners of tiles, the first 128 queries of a tile on it
    see none of the second 128 keys. A window's lower diagonal does not run through them."""
    multiply, scores = tiles.dot, set[tuple[int, int]]()

    def dot(a, b, contract):
        if contract == tiles.ABT:
            scores.add((a.shape[0], b.shape[0]))
        return multiply(a, b, contract)

    monkeypatch.setattr(tiles, "dot", dot)
    pieces = 4 if layout == "zigzag" else 2
    sizes = {"seq_len": 512 * pieces, "heads": 2, "kv_heads": 1, "head_dim": 64, "dtype": "float32"}
    workload = Workload(**sizes, mask=mask, passes="forward-backward")
    check(workload, parse_plan(f"ring/{layout}/{kernel}@ring=2,tile=256x256x128"))
    of_parts = {(256, 128), (128, 256)}  # forward and backward
    assert scores == of_parts | ({(128, 128)} if mask == "causal" else set())


DIAGONALS = list(itertools.product(KERNELS, (UNBOUNDED, -1, 130, -130, -256)))


@pytest.mark.parametrize(
    ("kernel", "high"), [pytest.param(*case, marks=marks) for case, marks in in_parts(DIAGONALS)], ids=str
)
def test_values_and_gradients_of_any_diagonal(kernel: str, high: int) -> None:
    """-1 leaves a row without a key, -130 a row of tiles, -256 all of them."""
    tile = Tile(128, 384 if high == -1 else 128)
    check_rectangles(kernel, [MaskBlock(0, 0, 256, 384, -UNBOUNDED, high)], tile)


@pytest.mark.parametrize("sizes", [(1, 40), (40, 1)], ids=["larger scores later", "larger scores first"])
def test_a_call_with_scores_beyond_the_bound_has_maxima(sizes: tuple[float, float]) -> None:
    """Two calls with keys of different sizes continue one state; only the call with large scores finds a maximum."""
    module, rows = kernels["pallas_bounded"].load(), 128
    q, *kv = (jax.random.normal(key, (1, 2, rows, 64)) for key in jax.random.split(jax.random.key(0), 5))
    keys, values = [size * k for size, k in zip(sizes, kv[:2], strict=True)], kv[2:]
    state = jnp.zeros(q.shape), jnp.full(q.shape[:3], module.EMPTY), jnp.zeros(q.shape[:3])
    band = MaskBlock(0, 0, rows, rows, -UNBOUNDED, UNBOUNDED)
    scores = [jnp.einsum("bnth,bnsh->bnts", q, k, precision="highest") / 8 for k in keys]
    forward = jax.jit(lambda *x: module.forward(*x, [band], Tile(128, 128)))
    for k, v, own in zip(keys, values, scores, strict=True):
        before = state[1]
        state = forward(q, k, v, state)
        largest = own.max(-1) if abs(own).max() > 30 else jnp.zeros(before.shape)
        assert jnp.allclose(state[1], jnp.maximum(before, largest), rtol=1e-5, atol=1e-5)
    weights = jax.nn.softmax(jnp.concatenate(scores, -1), -1)
    expected = jnp.einsum("bnts,bnsh->bnth", weights, jnp.concatenate(values, 2), precision="highest")
    rounding = max(abs(own).max() for own in scores) * jnp.finfo(jnp.float32).eps  # of a score, and so of its weight
    assert abs(state[0] / state[2][..., None] - expected).max() <= 4 * rounding * abs(expected).max()


BANDS = (-100, 0), (-300, 40), (8, UNBOUNDED), (-UNBOUNDED, -1)
TILES = Tile(128, 128), Tile(256, 128), Tile(128, 384)


@pytest.mark.parametrize(
    ("band", "tile"),
    [pytest.param(*case, marks=marks) for case, marks in in_parts(list(itertools.product(BANDS, TILES)))],
    ids=str,
)
def test_pallas_tpu_has_bands_of_any_kind(band: tuple[int, int], tile: Tile) -> None:
    check_rectangles("pallas_tpu", [MaskBlock(0, 0, 256, 384, *band)], tile)


ALIKE = {
    "windows of a tile each": (128, [[(-100, 0), (-228, -128)], [(28, 128), (-100, 0)]]),
    "lines without live tiles": (256, [[(200, UNBOUNDED)] * 2, [(-UNBOUNDED, -200)] * 2]),
    "beside each other": (128, [[(-UNBOUNDED, UNBOUNDED), (-100, 30), (-UNBOUNDED, 0)]]),
    "of all kinds": (256, [[(-UNBOUNDED, 0), (-UNBOUNDED, -1)], [(-UNBOUNDED, UNBOUNDED), (-UNBOUNDED, -200)]]),
}


def rectangles(kind: str) -> list[MaskBlock]:
    return squares(*ALIKE[kind])


def squares(side: int, rows: list[list[tuple[int, int]]]) -> list[MaskBlock]:
    """Squares in rows and columns, which meet the same queries or keys."""
    return [
        MaskBlock(i * side, j * side, side, side, *band) for i, row in enumerate(rows) for j, band in enumerate(row)
    ]


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=() if kind == next(iter(ALIKE)) else pytest.mark.exactness) for kind in ALIKE]
)
def test_pallas_tpu_adds_up_several_rectangles(kind: str) -> None:
    check_rectangles("pallas_tpu", rectangles(kind), Tile(128, 128))


@pytest.mark.parametrize(
    ("kind", "listed", "dq_rows"),
    [
        ("windows of a tile each", 2**15, 2**13),
        pytest.param("lines without live tiles", 2**15, 2**13, marks=pytest.mark.exactness),
        pytest.param("of all kinds", 8, 128, marks=pytest.mark.exactness),
    ],
)
def test_pallas_tpu_reads_no_data_that_is_still_to_come(monkeypatch, kind: str, listed: int, dq_rows: int) -> None:
    """Copies between memories are made where they are waited for, what was not written is NaN, and each read or write
    beside an earlier one of another order is found; in one list, and in stripes of a row of rectangles, or of tiles."""
    from jax.experimental.pallas import tpu

    module = kernels["pallas_tpu"].load()
    monkeypatch.setattr(grid, "INTERPRET", tpu.InterpretParams(detect_races=True))
    monkeypatch.setattr(module, "DQ_BYTES", 2 * dq_rows * 128 * 4)
    monkeypatch.setattr(lines, "LISTED", listed)
    check_rectangles("pallas_tpu", rectangles(kind), Tile(128, 128))
    assert not compat.pallas_interpreter().races.races_found


ODD = {
    "whole": squares(300, [[(-UNBOUNDED, UNBOUNDED)]]),
    "causal": squares(300, [[(-UNBOUNDED, 0)]]),
    "zigzag": squares(150, [[(-UNBOUNDED, 0), (-UNBOUNDED, -UNBOUNDED)], [(-UNBOUNDED, UNBOUNDED), (-UNBOUNDED, 0)]]),
    "more queries than keys": [MaskBlock(0, 0, 300, 131, -UNBOUNDED, 40)],
    "fewer queries than keys": [MaskBlock(0, 0, 131, 300, -UNBOUNDED, 40)],
}

QUICK_ROWS = [("splash", "causal"), ("pallas_tpu", "zigzag"), ("pallas_bounded", "fewer queries than keys")]


@pytest.mark.parametrize(
    ("kernel", "kind"),
    [
        pytest.param(kernel, kind, marks=() if (kernel, kind) in QUICK_ROWS else pytest.mark.exactness)
        for kernel, kind in itertools.product(KERNELS, ODD)
    ],
)
def test_rows_that_no_tile_divides_are_padded(kernel: str, kind: str) -> None:
    check_rectangles(kernel, ODD[kind], Tile(128, 256 if kind == "whole" else 128))


@pytest.mark.parametrize(
    ("kind", "lines_of_dq"),
    [("zigzag", 3), *(pytest.param(*each, marks=pytest.mark.exactness) for each in (("whole", 2), ("causal", 1)))],
)
def test_stripes_that_do_not_divide_the_lines_end_in_dead_lines(monkeypatch, kind: str, lines_of_dq: int) -> None:
    """Three lines in stripes of two, four in stripes of two, and three in stripes of one."""
    monkeypatch.setattr(kernels["pallas_tpu"].load(), "DQ_BYTES", 2 * lines_of_dq * 128 * 128 * 4)
    check_rectangles("pallas_tpu", ODD[kind], Tile(128, 128))


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=() if kind == "zigzag" else pytest.mark.exactness) for kind in ODD],
)
def test_padded_tiles_are_counted_as_they_run(monkeypatch, kind: str) -> None:
    from jax.experimental.pallas import tpu

    steps = []

    def record(token, point, core):
        steps.append(point)
        return token

    module, bands, tile = kernels["pallas_tpu"].load(), ODD[kind], Tile(128, 128)
    monkeypatch.setattr(grid, "INTERPRET", tpu.InterpretParams(grid_point_recorder=record))
    rows, cols = max(b.row + b.rows for b in bands), max(b.col + b.cols for b in bands)
    q, k, each = jnp.ones((1, 1, rows, 64)), jnp.ones((1, 1, cols, 64)), jnp.zeros((1, 1, rows))
    jax.block_until_ready(jax.jit(lambda *x: module.forward(*x, bands, tile))(q, k, k, (q, each, each)))
    assert len(steps) == int(kernels["pallas_tpu"].count_tiles(bands, tile).computed)
    jax.block_until_ready(jax.jit(lambda *x: module.backward(*x, bands, tile))(q, k, k, q, each, each, q))
    assert len(steps) == 2 * int(kernels["pallas_tpu"].count_tiles(bands, tile).computed)


SHARES = [
    pytest.param(*each, marks=pytest.mark.exactness if each[0] in ("whole", "later") else ())
    for each in (("whole", 1.0), ("causal", 10 / 16), ("later", 10 / 16), ("dead", 0.0))
]


@pytest.mark.parametrize(("scores", "share"), SHARES)
def test_dead_tiles_are_no_steps(monkeypatch, scores: str, share: float) -> None:
    """The grid of 4 x 4 tiles of 2 heads, as a TPU would walk over it."""
    from jax.experimental.pallas import tpu

    steps = []

    def record(token, point, core):
        steps.append(point)
        return token

    recorded = tpu.InterpretParams(grid_point_recorder=record)
    module, high = kernels["pallas_tpu"].load(), {"whole": UNBOUNDED, "causal": 0, "later": -1, "dead": -512}[scores]
    monkeypatch.setattr(grid, "INTERPRET", recorded)
    x, rows = jnp.ones((1, 2, 512, 128)), jnp.zeros((1, 2, 512))
    bands, tile = [MaskBlock(0, 0, 512, 512, -UNBOUNDED, high)], Tile(128, 128)
    jax.block_until_ready(jax.jit(lambda *x: module.forward(*x, bands, tile))(x, x, x, (x, rows, rows)))
    assert len(steps) == 2 * 16 * share
    jax.block_until_ready(jax.jit(lambda *x: module.backward(*x, bands, tile))(x, x, x, x, rows, rows, x))
    assert len(steps) == 2 * 2 * 16 * share


def test_a_window_is_refused() -> None:
    module, x = kernels["splash"].load(), jnp.zeros((1, 1, 128, 8))
    state = x, x[..., 0], x[..., 0]
    with pytest.raises(BadInput, match="but no windows"):
        module.forward(x, x, x, state, [MaskBlock(0, 0, 128, 128, -5, 0)], Tile(128, 128))
    workload = SimpleNamespace(window=Window(5, 0))
    assert "Try --kernel pallas_tpu." in str(kernels["splash"].why_unsupported(workload, None, "tpu", None))


@pytest.mark.parametrize(
    ("plan", "rows", "fits"),
    [
        # libtpu 0.0.42.1 compiles 544 rows of tiles, and of 545 says: Used 1.01M of 1.00M smem
        ("ulysses/contiguous/splash@ulysses=4,tile=1024x1024", 544 * 1024, True),
        ("ulysses/contiguous/splash@ulysses=4,tile=1024x1024", 545 * 1024, False),
        ("ulysses/contiguous/splash@ulysses=4,tile=1024x2048", 560 * 1024, True),
        ("ulysses/contiguous/splash@ulysses=4,tile=1024x2048,backward=1024x1024", 560 * 1024, False),
        ("ring/striped/splash@ring=4,tile=1024x1024", 4 * 544 * 1024, True),
        ("ring/zigzag/splash@ring=4,tile=1024x1024", 8 * 545 * 1024, False),
        ("ulysses/contiguous/pallas_tpu@ulysses=4,tile=1024x1024", 4096 * 1024, True),
    ],
)
def test_splash_lists_no_more_tiles_than_scalar_memory_holds(plan: str, rows: int, fits: bool) -> None:
    workload = Workload(seq_len=rows, heads=8, kv_heads=8, head_dim=128)
    reason = why_unsupported(parse_plan(plan), workload, "tpu")
    assert reason is None if fits else "more than the 1 MiB of scalar memory" in str(reason)
    assert why_unsupported(parse_plan(plan), replace(workload, mask="full"), "tpu") is None


@pytest.mark.parametrize(
    ("plan", "kind", "why"),
    [
        ("ring/striped/splash@ring=8", "cpu", "splash runs on TPUs. Try --kernel xla."),
        ("ring/striped/pallas_tpu@ring=8", "gpu", "pallas_tpu runs on TPUs. Try --kernel xla."),
        ("ring/striped/pallas_tpu@ring=8,tile=100", "tpu", "100x100 is not. Try tile=128x128."),
        ("ring/striped/splash@ring=8,tile=100", "tpu", "100x100 is not. Try tile=128x128."),
        ("ring/striped/pallas_tpu@ring=8,tile=128x256x64", "tpu", "a multiple of 128 keys at once; 64 is not. Try"),
        ("ring/striped/pallas_tpu@ring=8,tile=128,backward=128x256x64", "tpu", "Try backward=128x256x128."),
        ("ring/striped/pallas_tpu@ring=8,tile=128x256x128,backward=256x256x256", "tpu", None),
        ("ring/striped/splash@ring=8,tile=128x256x128", "tpu", None),
        ("ring/striped/xla@ring=8,tile=128x256x128", "tpu", "so a tile has two sides. Try tile=128x256."),
        ("rsa/contiguous/dense@ring=8,tile=256x256x128", "tpu", "so a tile has two sides. Try tile=256x256."),
        ("ring/striped/splash@ring=8,tile=384", "tpu", None),
        ("ring/striped/splash@ring=8,tile=1152", "tpu", "larger than the 1024 rows of a shard"),
        ("ring/striped/splash@ring=128", "tpu", None),
        ("ring/striped/splash@ring=8,tile=128,backward=130", "tpu", "splash needs backward tiles of multiples of 128"),
        ("ring/zigzag/splash@ring=8,tile=512x256", "tpu", None),
    ],
)
def test_refusals_have_reasons(plan: str, kind: str, why: str | None) -> None:
    reason = why_unsupported(parse_plan(plan), Workload(seq_len=8192, heads=2, kv_heads=2, head_dim=64), kind)
    assert reason is None if why is None else why in str(reason)


@pytest.mark.parametrize("kernel", ["pallas_tpu", "pallas_ring"])
def test_a_shard_has_no_more_tiles_a_side_than_a_list_tells_apart(kernel: str) -> None:
    work = Workload(seq_len=2**25, heads=2, kv_heads=2, head_dim=64)
    few, many = (parse_plan(f"ring/striped/{kernel}@ring=8,tile={tile}") for tile in ("256", "256,backward=1024x128"))
    reason = f"{kernel} lists at most 16,384 tiles per side of a shard; this one has 4,194,304 rows. Try larger tiles."
    assert why_unsupported(few, work, "tpu") is None and str(why_unsupported(many, work, "tpu")) == reason


@pytest.mark.parametrize(("seq_len", "layout"), [(2**20, "striped"), (2**14, "zigzag"), (3 * 2**14, "striped")])
def test_default_and_checked_tiles_can_run(seq_len: int, layout: str) -> None:
    work = Workload(seq_len=seq_len, heads=2, kv_heads=2, head_dim=64)
    plan = with_tile(parse_plan(f"ring/{layout}/splash@ring=8"), work, "tpu")
    assert why_unsupported(plan, work, "tpu") is None
    small, checked = cut_to_checkable(work, plan)
    assert why_unsupported(checked, small, "tpu") is None


def test_a_jax_without_the_private_functions_gets_one_line(monkeypatch) -> None:
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel

    monkeypatch.delattr(splash_attention_kernel, "_splash_attention_bwd_dq")
    monkeypatch.delitem(sys.modules, "stripectl.kernels.splash.kernel", raising=False)
    with pytest.raises(Missing, match=rf"JAX {jax.__version__} .* Try --kernel xla."):
        kernels["splash"].load()


@pytest.mark.parametrize(
    ("scheme", "changed", "kernel"),
    [
        ("ring", {}, "splash"),
        ("ring", {"mask": "sliding:4k"}, "pallas_tpu"),
        ("ulysses", {"seq_len": 2**20}, "pallas_tpu"),
        ("ring", {"documents": (2**12, 2**10)}, "xla"),
    ],
)
def test_where_splash_cannot_another_kernel_takes_its_place(scheme: str, changed: dict, kernel: str) -> None:
    work = replace(Workload(seq_len=2**16, heads=16, kv_heads=16, head_dim=128), **changed)
    plan = replace(on_devices(scheme, 16), kernel="")
    assert with_names(plan, work, Hardware.load("v5e")).kernel == kernel
