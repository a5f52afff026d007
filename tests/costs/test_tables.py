"""Tables of what tiles cost: what ships, what is made of them, and that every plan takes the same."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from stripectl.analysis.cost_sentences import cost_sentences
from stripectl.core.kernel import kernels
from stripectl.core.layout import Tile, parse_tile
from stripectl.core.plan import parse_plan
from stripectl.core.workload import Workload
from stripectl.costs.shape import Heads, TileShape, shapes_of
from stripectl.costs.source_order import cost_model
from stripectl.costs.sources.entries import effective_clock_hz, on_device
from stripectl.costs.sources.small_programs import canonical_program, entries_of
from stripectl.costs.sources.table import PASSES, CostTable, cost_near, nearest_entries, table_of
from stripectl.hardware.placement import place_mesh
from stripectl.hardware.profile import Hardware, hardware_names
from stripectl.hardware.target import parse_target
from stripectl.results.compiled_program import CompiledProgram, KernelBundles
from stripectl.results.cost_source import FAR
from stripectl.results.tile_cost import TileCost
from stripectl.simulate.simulation import simulate
from stripectl.util.files import profile_names
from tests.support.factories import measurement_of

OF_LIVE_PARTS = ("pallas_tpu", "pallas_bounded", "tokamax")  # kernels that leave out dead parts of boundary tiles
TPUS = ("v4", "v5e", "v5p", "v6e", "tpu7x")
WORK = Workload(seq_len=2**18, heads=16, kv_heads=16, head_dim=128, passes="forward-backward")


def shape(
    tile: str = "1024x1024", heads: str = "128", kernel: str = "pallas_tpu", passes: str = "forward", kv_heads: int = 8
) -> TileShape:
    sizes = Heads.read(heads)
    return TileShape(kernel, "bfloat16", sizes, parse_tile(tile), passes=passes, kv_heads=kv_heads, group=4)


def cost(name: str, wanted: TileShape) -> TileCost:
    """The cost with all cores busy."""
    table = table_of(Hardware.load(name))
    known = table and table.entry(wanted)
    assert known and not known.cost.processors
    return known.cost


def machine(target: str, text: str, work: Workload = WORK):
    plan, place = parse_plan(text), parse_target(target)
    return cost_model(place.hardware, work, plan, place_mesh(place, plan.mesh or ()))


def test_every_table_is_of_a_machine_that_ships() -> None:
    assert set(profile_names("kernels")) <= set(hardware_names())
    assert {*TPUS, "a100", "h100", "h200", "b200", "gb200", "gb300"} <= set(profile_names("kernels"))


@pytest.mark.parametrize("name", profile_names("kernels"))
def test_a_table_has_costs_of_every_pass(name: str) -> None:
    table = table_of(Hardware.load(name))
    assert table and table.costs and table.source
    for (kernel, _, _), heads in table.costs.items():
        most = 2.0 if kernel in OF_LIVE_PARTS else 1.1
        for tiles in heads.values():
            for found in tiles.values():
                assert 0 < found.whole_s <= most * found.boundary_s


@pytest.mark.parametrize("name", TPUS)
@pytest.mark.parametrize("kernel", ["pallas_tpu", "splash"])
def test_no_tile_beats_its_matmuls_at_the_peak(name: str, kernel: str) -> None:
    hardware, tile = Hardware.load(name), Tile(1024, 1024)
    for passes, matmuls in zip(PASSES, (2, 5), strict=True):
        wanted, peak = shape(kernel=kernel, passes=passes), hardware.figures["matmul_flops_per_s_bfloat16"]
        assert on_device(cost(name, wanted), wanted, hardware).whole_s >= 2 * matmuls * tile.scores * 128 / peak * 0.999


def test_cycles_take_what_published_matmuls_reach_of_the_peak() -> None:
    known = Hardware.load("tpu7x")
    share = known.figures["achievable_flops_per_s_bfloat16"] / known.figures["matmul_flops_per_s_bfloat16"]
    assert effective_clock_hz(known, "bfloat16") == pytest.approx(share * known.figures["clock_hz"])
    assert effective_clock_hz(Hardware.load("v5p"), "bfloat16") == Hardware.load("v5p").figures["clock_hz"]


def test_a_shape_that_no_entry_is_for_takes_the_nearest_and_says_so() -> None:
    table = table_of(Hardware.load("v5p"))
    assert table
    exact, between = table.entry(shape()), table.entry(shape("512x2048"))
    assert exact and exact.table.interpolated_from is None
    assert between and between.table.interpolated_from and between.table.interpolated_from.startswith("tile ")
    whole = cost("v5p", shape("512x2048")).whole_s
    assert whole == pytest.approx(cost("v5p", shape()).whole_s, rel=0.15)  # as many scores
    half = cost("v5p", shape("512x1024")).whole_s
    assert half == pytest.approx(whole / 2, rel=0.15)


@pytest.mark.parametrize("name", TPUS)
def test_a_table_of_a_tpu_has_several_sizes_of_every_kernel_and_head(name: str) -> None:
    """So that the cost of a step is known: small tiles as well as large tiles."""
    table = table_of(Hardware.load(name))
    assert table
    for (kernel, _, passes), heads in table.costs.items():
        for tiles in heads.values():
            sides = [side for tile in tiles for side in tile.sides]
            assert len(set(sides)) >= 2 if sides else passes == "backward"
            if sides and kernel in ("pallas_tpu", "pallas_bounded", "splash"):
                assert min(sides) == 128


@pytest.mark.parametrize("name", TPUS)
@pytest.mark.parametrize("kernel", ["pallas_tpu", "splash"])
@pytest.mark.parametrize("passes", PASSES)
def test_a_step_of_a_tile_costs_something(name: str, kernel: str, passes: str) -> None:
    """A score in tiles of 128 takes at least half as long again as in tiles of 1024."""
    small, large = (cost(name, shape(f"{side}x{side}", kernel=kernel, passes=passes)) for side in (128, 1024))
    assert small.whole_s * 8**2 > 1.5 * large.whole_s


def left_out(table: CostTable) -> Iterator[tuple[float, float]]:
    """For each entry of two sides, from the other entries of its heads: the distance of the nearest of them, and the
    error of the cost of a whole tile."""
    for (kernel, _, _), heads in table.costs.items():
        for tiles in heads.values():
            known = {tile: each for tile, each in tiles.items() if not tile.block_kv_compute}
            for tile, own in known.items() if kernel in kernels.names() and len(known) > 2 else ():
                others = {each: cost for each, cost in known.items() if each != tile}
                near, found = cost_near(others, tile, kernels[kernel])
                yield near.distance(tile), abs(found.whole_s / own.whole_s - 1)


@pytest.mark.parametrize(("far", "median", "most"), [(False, 0.05, 0.20), (True, 0.16, 0.45)])
def test_the_fit_of_tile_costs_errs_as_its_page_says(far: bool, median: float, most: float) -> None:
    """Leave one out, over all tables: half of the costs err by less, and nine of ten by less."""
    pairs = [pair for name in (*TPUS, "h100") if (table := table_of(Hardware.load(name))) for pair in left_out(table)]
    errors = sorted(error for distance, error in pairs if (distance > FAR) == far)
    assert len(errors) > 100 and errors[len(errors) // 2] < median and errors[len(errors) * 9 // 10] < most


@pytest.mark.parametrize(
    ("name", "key", "distance", "far"),
    [
        ("v5e", shape("128"), None, False),
        ("v5e", shape("512x2048", kernel="splash"), 1.0, False),
        ("v5e", shape("128x8192"), 3.0, True),
        ("h100", shape("2048x1024", "64", kernel="xla"), 1.0, False),  # it follows the sizes of heads of 128
        ("h100", shape("2048x1024", "128", kernel="xla"), 1.0, False),
        ("v5e", shape("128x8192", "192/128"), 3.0, True),
    ],
)
def test_a_tile_far_from_every_entry_is_marked(name: str, key: TileShape, distance: float | None, far: bool) -> None:
    table = table_of(Hardware.load(name))
    known = table and table.entry(key)
    assert known and known.table.distance == distance and known.table.is_far == far


def test_a_head_is_padded_to_the_matrix_unit() -> None:
    wide, narrow, odd = (cost("v5p", shape(heads=size)).whole_s for size in ("256", "128", "100"))
    assert odd == narrow < wide
    assert narrow < cost("v5p", shape(heads="192/128")).whole_s < wide


def test_a_table_without_the_kernel_or_dtype_says_nothing() -> None:
    table = table_of(Hardware.load("v5p"))
    assert table
    assert table.entry(shape()._replace(dtype="float32")) is None and table.entry(shape(kernel="cudnn")) is None
    assert table_of(Hardware.load("cpu")) is None


def test_one_key_value_head_keeps_one_core_of_two_busy() -> None:
    both, alone = (
        on_device(cost("v5p", each), each, Hardware.load("v5p")) for each in (shape(kv_heads=2), shape(kv_heads=1))
    )
    assert alone.whole_s == pytest.approx(2 * both.whole_s)


@pytest.mark.parametrize(("passes", "blocks"), [("forward", 2), ("backward", 4)])
def test_a_step_waits_for_its_blocks_whatever_its_tile(passes: str, blocks: int) -> None:
    """K and V forward; Q, dO, and dQ read and written backward. Bundles hold no wait (benchmarks/README.md)."""
    hardware = Hardware.load("tpu7x")
    patient = replace(hardware, figures={**hardware.figures, "block_wait_s": 0.0})
    for tile in ("1024x1024", "2048x2048x512"):
        wanted = shape(tile, kernel="tokamax", passes=passes)
        waits, none = (on_device(cost("tpu7x", wanted), wanted, each) for each in (hardware, patient))
        expected = pytest.approx(blocks * hardware.figures["block_wait_s"])
        assert waits.whole_s - none.whole_s == waits.boundary_s - none.boundary_s == expected
        assert (waits.row_s, waits.dead_s) == (none.row_s, none.dead_s)
    model = machine("tpu7x:1x1x1", "ring/striped/tokamax@ring=2,tile=1024")
    assert "128k tokens" in (model.cost_source.sources or {})["block_wait_s"]


@pytest.mark.parametrize("target", ["v4:2x2x4", "v5e:4x4", "v5p:2x2x4"])
def test_equal_tiles_cost_the_same_in_every_scheme(target: str) -> None:
    plans = [f"{scheme}/striped/pallas_tpu@ring=16,tile=1024" for scheme in ("ring", "bidirectional", "all_gather")]
    plans += ["usp/striped/pallas_tpu@ring=4,ulysses=4,tile=1024"]
    costs = [machine(target, text) for text in plans]
    assert len({each.forward for each in costs}) == len({each.backward for each in costs}) == 1


@pytest.mark.parametrize("target", ["v4:2x2x4", "v5e:4x4", "v5p:2x2x4"])
@pytest.mark.parametrize("layout", ["contiguous", "striped"])
def test_half_of_the_keys_at_a_time_takes_as_long(target: str, layout: str) -> None:
    """A bidirectional ring computes the tiles of a ring."""
    seconds = []
    for scheme in ("ring", "bidirectional"):
        text = f"{scheme}/{layout}/pallas_tpu@ring=16,tile=1024x1024"
        seconds.append(simulate(WORK, parse_plan(text), machine(target, text)).seconds)
    assert seconds[1] == pytest.approx(seconds[0], rel=0.15)


def test_hops_that_the_schedule_leaves_exposed_are_of_a_rolled_loop() -> None:
    rolled, unrolled = (machine("h100:8", f"ring/zigzag/cudnn@ring=8,tile=128x128{u}") for u in ("", ",unroll=2"))
    assert rolled.exposed and not unrolled.exposed and rolled.blocking == unrolled.blocking != ()


@pytest.mark.parametrize("target", ["v4:2x2x4", "v5e:4x4", "v5p:2x2x4", "v6e:4x4", "tpu7x:2x2x1"])
def test_all_to_alls_of_tpus_block_in_every_scheme_and_pass(target: str) -> None:
    """Whether a plan has the scheme of a recorded one or not."""
    for text in ("usp/striped/pallas_tpu@ring=2,ulysses=4", "double_ring/striped/pallas_tpu@outer=2,ulysses=4"):
        found = machine(target, f"{text},tile=1024x1024")
        assert not any(found.overlaps_compute(passes, "all-to-all", 2, 1) for passes in ("forward", "backward"))


def test_a_kernel_that_makes_its_hops_leaves_none_to_the_schedule() -> None:
    """The table's schedule is of hops that XLA makes."""
    assert not machine("v4:2x2x4", "ring/zigzag/pallas_ring@ring=16,tile=1024").exposed


def test_a_kernel_that_makes_hops_deals_heads_to_both_cores_or_to_one() -> None:
    shapes = (shape(kernel=name, kv_heads=3) for name in ("pallas_tpu", "pallas_ring"))
    own, ring = (on_device(cost("v5p", each), each, Hardware.load("v5p")) for each in shapes)
    assert own.whole_s == pytest.approx(2 / 3 * ring.whole_s)


@pytest.mark.parametrize("name", ["v5p", "h100"])
def test_a_profile_without_the_figure_that_makes_seconds_takes_its_datasheet(name: str) -> None:
    known = Hardware.load(name)
    figures = {figure: value for figure, value in known.figures.items() if figure != "clock_hz"}
    bare = replace(known, figures=figures, compiler={})
    kernel = "splash" if name == "v5p" else "cudnn"
    plan = parse_plan(f"ring/striped/{kernel}@ring=8,tile={'1024' if kernel == 'splash' else '128'}")
    assert nearest_entries(known, WORK, plan) and nearest_entries(bare, WORK, plan) is None


def test_a_canonical_program_is_small_and_of_one_device() -> None:
    work, plan = canonical_program(shape("2048x1024"))
    assert work.seq_len == 4 * 2048 and plan.devices == 1 and plan.tile == Tile(2048, 1024)
    assert str(plan).startswith("memory_efficient/contiguous/pallas_tpu@")


def test_a_kernel_takes_the_costs_of_the_kernel_that_computes_its_tiles() -> None:
    both = replace(WORK, passes="forward-backward")
    for kernel, forward in (("pallas_ring", "pallas_tpu"), ("pallas_bounded", "pallas_bounded")):
        found = shapes_of(both, parse_plan(f"ring/striped/{kernel}@ring=16,tile=1024x1024"))
        assert {passes: each.computed_by.name for passes, each in found.items()} == {
            "forward": forward,
            "backward": "pallas_tpu",
        }


def test_entries_of_bundles_are_of_the_device_that_its_cores_share() -> None:
    """Of splash's forward kernel both cores of a v5p run a part; its backward kernels run on one."""
    bundles = tuple(
        KernelBundles(name, 1, tile=4000, boundary=4400, step=100, row=300, masked=True)
        for name in ("splash_mha_fwd_residuals", "splash_mha_dq_no_residuals", "splash_mha_dkv_no_residuals")
    )
    none: dict[str, float] = dict.fromkeys(("whole", "boundary", "row", "branch", "other"), 0.0)
    program = CompiledProgram(cycles=dict.fromkeys(PASSES, none), bundles=bundles)
    found = entries_of(program, shape("512x512", kernel="splash"), Hardware.load("v5p"))
    assert found["forward"][:4] == (2050, 2250, 50, 150)
    assert found["backward"].whole == 2 * 4100 and found["backward"].row == found["backward"].column == 300
    assert entries_of(replace(program, bundles=bundles[:1]), shape(kernel="splash"), Hardware.load("v5p")).keys() == {
        "forward"
    }


def test_a_boundary_tile_takes_at_least_the_matmuls_that_it_computes() -> None:
    hardware, key = Hardware.load("v5e"), shape("1024x1024", kernel="pallas_tpu")
    fewer = KernelBundles("stripectl_forward", 1, 900, 900, 100, 300, masked=True, boundary_matmuls=0.75)
    none: dict[str, float] = dict.fromkeys(("whole", "boundary", "row", "branch", "other"), 0.0)
    found = entries_of(CompiledProgram(cycles={"forward": none}, bundles=(fewer,)), key, hardware)["forward"]
    assert found.whole == pytest.approx(4088, rel=0.01) and found.boundary == pytest.approx(0.75 * found.whole)


@pytest.mark.parametrize("source", ["bundles", "datasheet"])
def test_a_time_without_the_compiler_says_how_to_get_it(source: str) -> None:
    known = {"source": source, "forward": {"whole_s": 1e-6, "boundary_s": 1e-6}, "rate_is": "peak", "flops_per_s": 1e15}
    missing = {"not_compiled": "libtpu is not installed. Run: pip install '.[tpu]'"}
    text = "ring/zigzag/splash@ring=16,tile=1024x1024"
    (line,) = cost_sentences([measurement_of(text, 1.0, WORK, "v5p:2x2x4", cost_source=known | missing)])
    assert line.endswith(missing["not_compiled"])
