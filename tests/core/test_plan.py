"""Plans print and parse, and say why they cannot run."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stripectl.core.defaults import with_mesh
from stripectl.core.kept import Kept
from stripectl.core.kernel import kernels
from stripectl.core.layer_kinds import LayerKind
from stripectl.core.layout import Tile, layouts, parse_tile
from stripectl.core.mesh import AXES, STORED_AXES, make_mesh
from stripectl.core.plan import (
    DEFAULT_CHUNK,
    MESSAGES,
    OFFLOADED,
    REMAT,
    REMAT_NAMES,
    STATE_OFFLOADED,
    STATES,
    UNBUILT,
    ZERO,
    LayerPlan,
    Plan,
    parse_plan,
)
from stripectl.core.scheme import schemes
from stripectl.core.workload import Workload
from stripectl.errors import BadInput
from tests.support.plans import why_refused as why_unsupported
from tests.support.plans import with_tile

WORK = Workload(seq_len=8192, heads=8, kv_heads=4, head_dim=64)


def tile_of(queries: int, keys: int, parts: int | None) -> Tile:
    """A tile whose keys are multiplied in so many parts."""
    return Tile(queries, keys, None) if parts is None else Tile(queries, keys * parts, keys)


LAYERS = st.builds(
    LayerPlan,
    st.sampled_from(["ring", "ulysses", "all_gather"]),
    st.sampled_from(["", "xla", "splash"]),
    st.one_of(st.none(), st.just(Tile(512, 1024))),
    layout=st.sampled_from([None, *layouts.names()]),
)


def some_of(names: Sequence[str]) -> st.SearchStrategy[str]:
    """Names joined by `+`, in their order."""
    chosen = st.sets(st.sampled_from(names), min_size=1)
    return chosen.map(lambda several: "+".join(name for name in names if name in several))


UNBUILT_VALUES = {
    "chunked": LAYERS.map(str),
    "message": st.sampled_from(MESSAGES),
    "expert": st.one_of(st.integers(1, 256).map(str), some_of(STORED_AXES)),
}
UNBUILT_PARTS = st.fixed_dictionaries({}, optional=UNBUILT_VALUES).map(
    lambda values: tuple(f"{name}={values[name]}" for name in UNBUILT if name in values)
)
TILES = st.builds(tile_of, st.integers(1, 8192), st.integers(1, 8192), st.one_of(st.none(), st.integers(1, 9)))


@given(
    st.sampled_from(schemes.names()),
    st.sampled_from(layouts.names()),
    st.dictionaries(st.sampled_from(AXES), st.integers(1, 64)),
    st.one_of(st.none(), TILES),
    st.integers(1, 9),
    st.one_of(st.none(), st.integers(0, 4096)),
    st.one_of(st.sampled_from(REMAT), some_of(REMAT_NAMES).filter(lambda names: names != Kept.CONTEXT)),
    st.one_of(st.just(""), some_of(OFFLOADED)),
    st.sampled_from(ZERO),
    st.sampled_from(STATES),
    st.one_of(st.none(), TILES),
    st.one_of(st.none(), LAYERS),
    st.one_of(st.none(), LAYERS),
    UNBUILT_PARTS,
)
def test_what_is_printed_parses(
    scheme: str,
    layout: str,
    axes: dict[str, int],
    tile: Tile | None,
    unroll: int,
    chunk: int | None,
    remat: str,
    offload: str,
    zero: str,
    states: str,
    backward: Tile | None,
    softmax: LayerPlan | None,
    sliding: LayerPlan | None,
    unbuilt: tuple[str, ...],
) -> None:
    own = None if backward == tile else backward
    plan = Plan(scheme, layout, "xla", make_mesh(axes), tile, unroll, chunk, remat, offload, zero, states, own)
    plan = replace(plan, softmax=softmax, sliding=sliding, unbuilt=unbuilt)
    assert parse_plan(str(plan)) == plan


def test_defaults_and_short_forms() -> None:
    assert parse_plan("ring") == Plan("ring")
    assert str(parse_plan("ring/zigzag@tensor=2,ring=4,data=1,tile=1024")) == (
        "ring/zigzag@ring=4,tensor=2,tile=1024x1024"
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "/",
        "ring@unroll=0",
        "ring@ring=8,ring=2",
        "ring/striped/xla/more",
        "ring@ring",
        "ring@ring=-1",
        "ring@tile=0",
        "ring@tile=axb",
        "ring@tile=8x8x8x8",
        "ring@tile=8x8x0",
        "ring@tile=8x8x16",
        "ring@tile=8x12x8",
        "ring@x=1",
        "ring;",
        "ring@ring=4,tile=8,tile=9",
        "ring@backward=0",
        "ring@backward=8,backward=9",
        "ring@chunk=-1",
        "ring@chunk=x",
        "ring@chunk=8,chunk=8",
        "ring@remat=",
        "ring@remat=ful",
        "ring@remat=full,remat=none",
        "ring@zero=2",
        "lasp@softmax=lasp2",
        "lasp@softmax=",
        "lasp@softmax=ring/xla/8/8/8",
        "lasp@softmax=ring/chunked",
        "lasp@softmax=ring/xlo",
        "lasp@softmax=ring,softmax=ring",
        "ring@sliding=ring/xla/more/8/8",
        "ring@chunked=lasp",
        "ring@message=",
        "ring@message=head",
        "ring@offload=inputs+input",
        "ring@offload=",
        "ring@remat=inputs",
        "ring@remat=query+full",
        "ring@remat=",
        "ring@expert=0",
        "ring@expert=fsdp+tensor",
        "ring@expert=8,expert=fsdp",
    ],
)
def test_garbage_is_refused(text: str) -> None:
    with pytest.raises(BadInput):
        parse_plan(text)


def test_parts_that_nothing_computes_yet_have_one_form() -> None:
    text = "ring@expert=ring+fsdp,ring=4,chunked=ulysses/xla,message=latent"
    assert str(parse_plan(text)) == "ring@ring=4,chunked=ulysses/xla,message=latent,expert=fsdp+ring"


def test_kept_values_have_one_form() -> None:
    text = "ring@ring=4,remat=context+query,offload=parameters+inputs"
    assert str(parse_plan(text)) == "ring@ring=4,offload=inputs+parameters,remat=query+context"
    assert parse_plan("ring@remat=context") == parse_plan("ring@remat=attention")


@pytest.mark.parametrize(
    ("plan", "why"),
    [
        *((f"ring@{part}", f"{part} is not built yet. Omit it.") for part in ("message=latent", "expert=8")),
        *((f"ring@offload=inputs+{name}", f"offload={name} is not built yet. Omit it.") for name in STATE_OFFLOADED),
        ("ring@ring=16", "needs 16 devices"),
        ("ring@ulysses=2", "has no axis ulysses"),
        ("ring@ring=3", "rows that divide evenly"),
        ("ring/zigzag@ring=8,tile=1024", "larger than the 512 rows of a piece of a zigzag shard"),
        ("ring@ring=8,tile=512,backward=2048", "the backward tile 2048x2048 is larger than the 1024 rows of a shard"),
        ("ring@ring=2,data=2", "a batch of 1 cannot be divided over data=2"),
        ("ring@ring=4,chunk=500", "chunk=500 does not divide the 2048 rows of a device. Try chunk=256"),
        ("ring@tensor=8", "4 kv_heads cannot be divided over tensor=8. Try tensor=4"),
        ("ring/contiguous/chunked@ring=2", "Add --attention linear"),
    ],
)
def test_refusals_have_reasons(plan: str, why: str) -> None:
    assert why in str(why_unsupported(parse_plan(plan), WORK, "cpu", 8))


@pytest.mark.parametrize(
    ("plan", "changes", "follows"),
    [
        ("ring@data=2,fsdp=2", {"batch": 2}, "ring@data=2,fsdp=1"),
        ("ring@data=4,fsdp=2", {"batch": 6}, "ring@data=2,fsdp=1"),
        ("ring@tensor=8", {}, "ring@tensor=4"),
        ("ring@ulysses=2", {}, "ring@ulysses=1"),
        ("ulysses@ulysses=8", {"heads": 12, "kv_heads": 12}, "ulysses@ulysses=4"),
    ],
)
def test_a_refusal_names_sizes_of_the_mesh_that_work(plan: str, changes: dict, follows: str) -> None:
    work, names = replace(WORK, **changes), follows.split("@")[1]
    reason = str(why_unsupported(parse_plan(plan), work, "cpu", 8))
    assert reason.endswith(f"Try {names}."), reason
    assert why_unsupported(parse_plan(follows), work, "cpu", 8) is None


def test_one_device_is_a_mesh_and_no_mesh_is_a_choice() -> None:
    one, chosen = parse_plan("ring@ring=1"), parse_plan("ring")
    assert str(one) == "ring@ring=1" and one.devices == 1
    assert with_mesh(one, 8) == one
    assert with_mesh(chosen, 8).mesh == (("ring", 8),)


def test_options_of_a_step_say_what_is_not_the_default() -> None:
    text = "ring/striped/xla@ring=4,chunk=512,remat=dots,zero=0"
    plan = parse_plan(text)
    assert str(plan) == text and (plan.chunk, plan.remat, plan.zero) == (512, "dots", "0")
    assert str(parse_plan("ring@ring=4,remat=full,zero=3")) == "ring@ring=4"
    with pytest.raises(BadInput, match="Known: 0, 1, 3"):
        parse_plan("ring@zero=12")


def test_softmax_layers_have_their_scheme_kernel_and_tile() -> None:
    text = "lasp2/contiguous/chunked@ring=4,tile=256x256,softmax=ring/xla/512x1024"
    plan = parse_plan(text)
    assert str(plan) == text and str(parse_plan("lasp2@ring=4,softmax=ring")).endswith("softmax=ring")
    assert str(plan.for_attention("softmax")) == "ring/contiguous/xla@ring=4,tile=512x1024"
    assert str(plan.for_attention("linear")) == "lasp2/contiguous/chunked@ring=4,tile=256x256"
    assert str(parse_plan("lasp/contiguous@ring=4").for_attention("softmax")) == "all_gather/contiguous@ring=4"
    assert (
        str(parse_plan("ulysses/contiguous/chunked@ulysses=4").for_attention("softmax"))
        == "ulysses/contiguous@ulysses=4"
    )
    laid = parse_plan("lasp2/contiguous@ring=4,softmax=ring/zigzag")
    assert str(laid).endswith("softmax=ring/zigzag") and laid.softmax_layout == "zigzag"
    assert str(laid.for_attention("softmax")) == "ring/zigzag@ring=4"
    assert parse_plan("lasp2/contiguous@ring=4,softmax=ring/contiguous").softmax_layout is None
    both = parse_plan("ring/contiguous/chunked@ring=4,tile=64,softmax=ring/xla/32/16")
    assert str(both.for_attention("softmax")) == "ring/contiguous/xla@ring=4,tile=32x32,backward=16x16"


def test_a_plan_of_softmax_layers_has_linear_ones_beside_them_and_its_tile_is_theirs() -> None:
    plan = parse_plan("ring/contiguous@ring=4,tile=64,backward=32,softmax=all_gather")
    assert str(plan.for_attention("linear")) == "ring/contiguous@ring=4,tile=64x64,backward=32x32"
    assert str(plan.for_attention("softmax")) == "all_gather/contiguous@ring=4"
    assert str(parse_plan("all_gather@ring=4,parts=2").for_attention("softmax")) == "all_gather@ring=4,parts=2"
    sizes = {"hidden": 64, "feed_forward": 128, "layers": 4, "vocabulary": 256}
    hybrid = replace(WORK, passes="step", attention="LLLS", **sizes)
    assert "no linear form" in str(why_unsupported(parse_plan("rsa@ring=8"), hybrid, "cpu", 8))


def test_layers_of_two_kinds_are_refused_where_they_cannot_meet() -> None:
    sizes = {"hidden": 64, "feed_forward": 128, "layers": 4, "vocabulary": 256}
    hybrid = replace(WORK, passes="step", attention="LLLS", **sizes)
    assert why_unsupported(parse_plan("lasp2@ring=8"), hybrid, "cpu", 8) is None
    assert "all_gather has no axis" in str(
        why_unsupported(parse_plan("ulysses/contiguous/chunked@ulysses=4,softmax=all_gather"), hybrid, "cpu", 8)
    )
    for plan, hint in (("megatron_sp/contiguous/chunked", "megatron_sp"), ("lasp", "all_gather")):
        other = "ring" if plan != "lasp" else "megatron_sp"
        reason = str(why_unsupported(parse_plan(f"{plan}@tensor=4,softmax={other}"), hybrid, "cpu", 8))
        assert "shard hidden states differently" in reason and f"Try softmax={hint}." in reason
    linear = hybrid.of_kind(LayerKind("linear", "causal"))
    assert "Omit softmax=ring." in str(why_unsupported(parse_plan("lasp2@ring=8,softmax=ring"), linear, "cpu", 8))


def test_the_tile_of_the_backward_pass_is_that_of_the_forward_pass_unless_it_says_so() -> None:
    plan = parse_plan("ring@ring=8,tile=256,backward=512x128")
    assert str(plan) == "ring@ring=8,tile=256x256,backward=512x128"
    assert plan.tiles == {"forward": Tile(256, 256), "backward": Tile(512, 128)}
    same = parse_plan("ring@ring=8,tile=256,backward=256")
    assert same == parse_plan("ring@ring=8,tile=256") and same.tiles["backward"] == Tile(256, 256)


def test_chunks_divide_the_rows_of_a_shard() -> None:
    assert parse_plan("ring@chunk=512").chunk_rows(2048) == 512
    assert parse_plan("ring@chunk=512").chunk_rows(128) == parse_plan("ring@chunk=0").chunk_rows(128) == 128
    assert parse_plan("ring").chunk_rows(8 * DEFAULT_CHUNK) == DEFAULT_CHUNK
    assert parse_plan("ring").chunk_rows(3000) == 1000


def test_a_plan_that_can_run_has_no_reason() -> None:
    assert why_unsupported(parse_plan("ring/zigzag@ring=4,tensor=2,tile=512"), WORK, "cpu", 8) is None


def test_a_tile_may_say_how_many_keys_are_multiplied_at_once() -> None:
    plan = parse_plan("ring@ring=8,tile=256x512x128,backward=256x512x256")
    assert str(plan) == "ring@ring=8,tile=256x512x128,backward=256x512x256"
    assert plan.tiles == {"forward": Tile(256, 512, 128), "backward": Tile(256, 512, 256)}
    assert (plan.tiles["forward"].sides, plan.tiles["forward"].scores) == ((256, 512), 256 * 512)
    with pytest.raises(BadInput, match=r"384 keys at once do not divide 512\. Try 256x512x128\."):
        parse_tile("256x512x384")


def test_equal_tiles_of_a_kernel_have_one_name() -> None:
    own = kernels["pallas_tpu"]
    assert own.shortest_name(Tile(1024, 1024, 512)) == own.shortest_name(Tile(1024, 1024)) == Tile(1024, 1024)
    assert own.shortest_name(Tile(1024, 768, 256)) == Tile(1024, 768)  # 512 does not divide 768
    assert own.shortest_name(Tile(1024, 1024, 256)) == Tile(1024, 1024, 256)
    assert kernels["splash"].shortest_name(Tile(1024, 1024, 512)) == Tile(1024, 1024, 512)  # 1024 without a mask


def test_default_tiles_leave_enough_of_them_to_balance_and_are_not_too_small_for_the_hardware() -> None:
    assert with_tile(parse_plan("ring@ring=8"), WORK, "cpu").tile == Tile(128, 128)
    assert with_tile(parse_plan("ring@ring=8"), WORK, "tpu").tile == Tile(1024, 1024)
    long = Workload(seq_len=2**20, heads=8, kv_heads=4, head_dim=64)
    assert with_tile(parse_plan("ring@ring=8"), long, "tpu").tile == Tile(2048, 4096)
    assert with_tile(parse_plan("ring@ring=8,tile=64"), long, "tpu").tile == Tile(64, 64)
