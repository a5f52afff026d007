"""A step under a plan is the single device's step: loss, gradients and parameters; and what it moves and keeps."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import numpy as np
import optax
import pytest

from stripectl.core.layer_groups import layer_groups, segments
from stripectl.core.layout import layouts
from stripectl.core.linear_attention import LinearHeads
from stripectl.core.mesh import STORED_AXES
from stripectl.core.model import Model
from stripectl.core.plan import REMAT
from stripectl.errors import BadInput
from stripectl.execute.layout_switch import from_layout, to_layout
from stripectl.hlo.module import ITEM_BYTES, SHAPE, collectives, parse_module, sent_bytes_by_opcode
from stripectl.simulate.step_program import run_step
from stripectl.simulate.training_step import sent_in_step
from stripectl.training.step import make_training
from tests.support.decoders import DECODERS, LINEAR_DECODERS
from tests.support.exact import covering
from tests.support.jaxprs import transfers, walk, without_dead_code
from tests.support.training import (
    BATCH,
    FAST,
    GRADIENTS,
    LENGTH,
    LINEAR,
    LOSS,
    MODEL,
    PARAMETERS,
    RECURRENT_GRADIENTS,
    RECURRENT_PARAMETERS,
    arrays,
    errors,
    tokens,
    trained,
    training,
)

HYBRID = replace(MODEL, layers=4, attention="LS", decay="0.9", features="elu")
# Layers of a recurrence with heads of their own, beside softmax ones: more than one turn of a pattern, and a rest.
GATED = replace(MODEL, layers=5, attention="LSLSL", recurrence="gdn", linear_heads=LinearHeads(4, 2, 8, 12), kv_heads=2)

DEFAULT = [
    "ring/contiguous@data=2,fsdp=2,ring=2,chunk=8",
    "ring/striped@ring=4,tensor=2,chunk=4,remat=none",
    "ring/zigzag@fsdp=2,ring=2,tensor=2,chunk=0,remat=attention",
    "all_gather/striped@data=2,ring=2,tensor=2,chunk=0,remat=attention,zero=0",
    "ring/striped@fsdp=2,ring=4,chunk=4,zero=1",
    "ring/zigzag@fsdp=2,ring=2,tensor=2,chunk=4,remat=query+value,offload=inputs+context",
    "ring/striped@data=2,ring=2,tensor=2,chunk=0,remat=dots,offload=inputs+key+projection",
]
# Plans by model: layers of linear attention, and of both kinds.
OTHERS = {
    LINEAR: [
        "lasp@data=2,fsdp=2,ring=2,chunk=8,tile=12",
        "lasp2@ring=4,tensor=2,chunk=0,remat=attention,zero=1",
        "ulysses/contiguous/chunked@data=2,ulysses=2,chunk=0,remat=none,zero=0",
    ],
    HYBRID: [
        "lasp2@fsdp=2,ring=4,chunk=4",
        "lasp@data=2,ring=2,tensor=2,chunk=0,remat=none,zero=1,softmax=ring",
        "lasp2@data=2,ring=4,chunk=0,remat=dots,zero=0,softmax=rsa",
        "megatron_sp/contiguous/chunked@data=2,fsdp=2,tensor=2,chunk=0,remat=dots",
    ],
}
RECURRENT = {
    GATED: [
        "lasp/contiguous/gated@data=2,ring=2,tensor=2,chunk=8,tile=12",
        "linear_scan/contiguous/gated@ring=8,chunk=4,remat=attention,states=recomputed",
        "lasp2/contiguous/gated@data=2,ring=4,chunk=4,softmax=ring/zigzag",
        "lasp/contiguous/gated@ring=4,tensor=2,chunk=0,remat=none,softmax=ring/striped",
    ],
    replace(LINEAR, decay="1", kv_heads=4, recurrence="kda"): ["lasp2/contiguous/gated@data=2,ring=2,tensor=2,zero=0"],
    replace(LINEAR, decay="1", kv_heads=4, recurrence="gla"): ["linear_scan/contiguous/gated@fsdp=2,ring=4"],
    replace(LINEAR, decay="1", kv_heads=4, recurrence="mamba2", key_heads=2): [
        "ulysses/contiguous/gated@data=2,ulysses=2,tensor=1,chunk=0,remat=dots"
    ],
}
FULL_RECURRENT = {
    GATED: [
        "lasp2/contiguous/gated@fsdp=2,ring=4,chunk=0,remat=none,zero=1,softmax=ring",
        "lasp2/zigzag/gated@data=2,ring=4,chunk=4,softmax=ring",
    ],
}
FACTORS = [
    ["ring/contiguous", "ring/striped", "ring/zigzag", "all_gather/contiguous", "all_gather/zigzag"],
    ["ring=8", "data=2,fsdp=2,ring=2", "ring=4,tensor=2", "fsdp=2,ring=2,tensor=2", "data=2,ring=2,tensor=2"],
    ["chunk=0", "chunk=4"],
    ["remat=full", "remat=attention", "remat=dots", "remat=none"],
    ["zero=3", "zero=1", "zero=0"],
]


def product(factors: list[list[str]]) -> list[tuple]:
    return [()] if not factors else [(one, *rest) for one in factors[0] for rest in product(factors[1:])]


FULL = ["ring/striped@data=2,ring=4,chunk=0,remat=dots"]
FULL += [f"{each[0]}@{','.join(each[1:])}" for each in covering(product(FACTORS))]
PLANS = [
    pytest.param(plan, marks=marks)
    for plans, marks in (
        (DEFAULT[1:2], ()),
        (DEFAULT[:1] + DEFAULT[2:], pytest.mark.training),
        (FULL, pytest.mark.full),
    )
    for plan in plans
]


ONE = "ring/contiguous@ring=1,chunk=0,remat=none"


@pytest.mark.parametrize("plan", PLANS)
def test_a_step_is_the_single_devices_step(plan: str) -> None:
    assert_alike(trained(plan), trained(ONE))


def linear_one(model: Model) -> dict[str, Any]:
    """A step of a model with linear layers on a single device."""
    return trained("lasp@ring=1,chunk=0,remat=none", model=model)


@pytest.mark.training
@pytest.mark.parametrize(("model", "plan"), [(model, plan) for model, plans in OTHERS.items() for plan in plans])
def test_a_step_with_linear_layers_is_the_single_devices_step(model: Model, plan: str) -> None:
    assert_alike(trained(plan, model=model), linear_one(model))


RECURRENCES = [
    pytest.param(model, plan, marks=part)
    for wanted, part in ((RECURRENT, pytest.mark.training), (FULL_RECURRENT, pytest.mark.full))
    for model, plans in wanted.items()
    for plan in plans
]


@pytest.mark.parametrize(("model", "plan"), RECURRENCES)
def test_a_step_with_a_recurrence_is_the_single_devices_step(model: Model, plan: str) -> None:
    one = trained("lasp/contiguous/gated@ring=1,chunk=0,remat=none", model=model)
    assert_alike(trained(plan, model=model), one, RECURRENT_GRADIENTS, RECURRENT_PARAMETERS, least=2)


@pytest.mark.training
def test_without_adams_division_parameters_are_as_close_as_gradients() -> None:
    """With Adam they are 2.6e-4 apart (benchmarks/README.md "Accuracy of recurrent training")."""
    model, plan = replace(GATED, d_conv=4), "lasp2/contiguous/gated@data=2,ring=4,chunk=4,softmax=ring/zigzag"
    plans = plan, "lasp/contiguous/gated@ring=1,chunk=0,remat=none"
    found, one = (trained(each, model=model, divides=False) for each in plans)
    for name in ("gradients", "after"):
        assert max(errors(found[name], one[name])) < RECURRENT_GRADIENTS
    assert max(errors(one["after"], one["before"])) > 100 * RECURRENT_GRADIENTS


SP = "megatron_sp/contiguous@data=2,tensor=2"
MOVED = ["all_gather/zigzag@ring=4,parts=2", "usp/striped@ring=2,ulysses=2", "rsa/striped@ring=4"]
OF_DECODERS = ["ring/striped@fsdp=2,ring=2,tensor=2,chunk=8,remat=full", f"{SP},chunk=0,remat=dots"]
OF_DECODERS += [f"ring/zigzag@fsdp=2,ring=2,tensor=2,chunk=16,remat={remat}" for remat in ("attention", "none", "dots")]
SENT = [
    *((MODEL, plan) for plan in (*DEFAULT, "ring@ring=2,tensor=2,chunk=8", "ring@ring=2,tensor=2,chunk=0,remat=dots")),
    *(
        (MODEL, f"{plan},remat={remat}")
        for plan in MOVED
        for remat in REMAT
        if (plan[:3], remat) != ("rsa", "attention")
    ),
    *((MODEL, f"{SP},chunk={chunk}") for chunk in ("0,remat=full", "8,remat=attention", "0,remat=none")),
    *((model, plan) for model in LINEAR_DECODERS.values() for plan in OTHERS[LINEAR][:2]),
    *((model, plan) for model in DECODERS.values() for plan in OF_DECODERS),
    *((model, plan) for plans in (OTHERS, RECURRENT) for model, own in plans.items() for plan in own),
]


@pytest.mark.parametrize(
    ("model", "plan"),
    [pytest.param(*each, marks=() if at % 6 == 1 else pytest.mark.training) for at, each in enumerate(SENT)],
)
def test_a_step_sends_what_is_simulated(model: Model, plan: str) -> None:
    """The bytes of every kind of transfer along every axis of the mesh. ZeRO-1 gathers parameters after the update."""
    run = training(plan, model=model)
    jaxpr = jax.make_jaxpr(run.gradients)(run.abstract_parameters, run.abstract_batch).jaxpr
    found, simulated = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for opcode, axes, nbytes, times in transfers(without_dead_code(jaxpr), run.plan):
        found[opcode, axes] += nbytes * times
    for each in sent_in_step(layer_groups(run.workload, run.plan), run_step(run.workload, run.plan).sent):
        simulated[each.opcode, "+".join(each.axes)] += round(each.nbytes * each.times)
    if run.plan.zero == "1":
        after = "all-gather", "+".join(axis for axis in STORED_AXES if run.plan.size(axis) > 1)
        own = sum(np.prod(each.shape) for each in jax.tree.leaves(run.abstract_parameters))
        assert 0 < simulated.pop(after) - found.pop(after, 0) <= own * 4
    assert found == simulated and len(found) >= 2


@pytest.mark.training
@pytest.mark.parametrize("layout", ["zigzag", "striped"])
def test_a_switch_of_layouts_sends_what_its_arithmetic_says(layout: str) -> None:
    """For three layers, two of them with softmax attention: there and back, and as often for gradients."""
    model = replace(GATED, layers=3, attention="SLS")
    sent = []
    for softmax in ("all_gather", f"all_gather/{layout}"):
        run = training(f"lasp2/contiguous/gated@data=2,ring=4,chunk=4,softmax={softmax}", model=model)
        jaxpr = jax.make_jaxpr(run.gradients)(run.abstract_parameters, run.abstract_batch).jaxpr
        found = [each for each in transfers(jaxpr, run.plan) if each[0] in ("collective-permute", "all-to-all")]
        sent.append(sum(nbytes * times for _, _, nbytes, times in found))
        wanted = [each for each in run_step(run.workload, run.plan).sent if each.opcode in {x[0] for x in found}]
        assert sum(each.nbytes * each.times for each in wanted) == sent[-1]
    rows, share = BATCH // 2 * LENGTH // 4, 1.0 if layout == "zigzag" else 3 / 4
    assert sent == [0, 4 * 2 * share * rows * MODEL.hidden * 4]


@pytest.mark.parametrize("layout", ["zigzag", "striped"])
@pytest.mark.parametrize("shards", [2, 3, 8])
def test_rows_switch_to_a_layout_and_back(layout: str, shards: int) -> None:
    seq_len = shards**2 * 4
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:shards]), ("ring",))
    spec, rows = jax.sharding.PartitionSpec("ring"), np.arange(2 * seq_len, dtype=np.float32).reshape(seq_len, 2)

    def moved(move: Any, x: np.ndarray) -> np.ndarray:
        own = partial(move, layout=layout, axis="ring", shards=shards, dim=0)
        return np.asarray(jax.jit(jax.shard_map(own, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False))(x))

    laid = rows[layouts[layout].permutation(shards, seq_len)]
    assert (moved(to_layout, rows) == laid).all() and (moved(from_layout, laid) == rows).all()


@pytest.mark.parametrize(
    ("plan", "length", "why"),
    [
        ("lasp2@ring=8,softmax=all_gather/striped/xla", 8 * 12, "divide over 8 devices twice"),
        ("lasp2@ring=8,softmax=all_gather/zigzag/xla", 8 * 3, "zigzag needs a multiple of 2 rows"),
        ("ulysses/contiguous/chunked@ulysses=4,softmax=ulysses/zigzag/xla", 64, "not ulysses. Try ulysses=1"),
    ],
)
def test_layouts_that_cannot_switch_are_refused(plan: str, length: int, why: str) -> None:
    with pytest.raises(BadInput, match=why):
        make_training(HYBRID, plan, seq_len=length, batch=BATCH, dtype="float32")


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        ("SSSS", [("S", 4)]),
        ("LLLSLLLSLLS", [("LLLS", 2), ("LLS", 1)]),
        ("LLLS" * 6 + "LLS", [("LLLS", 6), ("LLS", 1)]),
        ("LS", [("LS", 1)]),
    ],
)
def test_scans_go_through_as_few_layers_as_they_can(kinds: str, expected: list) -> None:
    assert segments(kinds) == expected


def assert_alike(
    found: dict[str, Any],
    one: dict[str, Any],
    gradients: float = GRADIENTS,
    parameters: float = PARAMETERS,
    least: int = 20,
) -> None:
    """The same losses, gradients, and parameters, which three steps have moved by `least` tolerances."""
    assert max(errors(found["before"], one["before"])) == 0
    assert np.allclose(found["losses"], one["losses"], rtol=LOSS, atol=0)
    assert max(errors(found["gradients"], one["gradients"])) < gradients
    assert max(errors(found["after"], one["after"])) < parameters
    assert min(errors(one["after"], one["before"])) > least * parameters, "three steps move every parameter"


def softmax_attention(q, k, v):
    s = np.einsum("tnh,snh->nts", q, k) / MODEL.head_dim**0.5
    s = np.where(np.tri(len(q), dtype=bool), s, -np.inf)
    p = np.exp(s - s.max(-1, keepdims=True))
    return np.einsum("nts,snh->tnh", p / p.sum(-1, keepdims=True), v)


def linear_attention(q, k, v, model: Model):
    """All pairs at once, each faded by the tokens between, and the output normed."""
    if model.features == "elu":
        q, k = (np.where(x > 0, 1 + x, np.exp(x)) for x in (q, k))
    kept = np.full(model.kv_heads, float(model.decay) if model.decay != "per-head" else 0.0)
    if model.decay == "per-head":
        kept = np.exp(-(2.0 ** (-8 * np.arange(1, model.kv_heads + 1) / model.kv_heads)))
    apart = np.subtract.outer(np.arange(len(q)), np.arange(len(q)))
    fade = np.repeat(kept, model.heads // model.kv_heads)[:, None, None] ** np.maximum(apart, 0) * (apart >= 0)
    out = np.einsum("tnh,snh,nts,snd->tnd", q, k, fade, v)
    return out / np.sqrt((out**2).mean(-1, keepdims=True) + 1e-5)


def decoder_loss(parameters: list[np.ndarray], rows: np.ndarray, model: Model = MODEL) -> float:
    """A LLaMA's mean loss in float64, one sequence after the other, natural order, nothing shared with the package."""
    kinds = {"softmax": "S", "linear": "L"}.get(model.attention, model.attention) * model.layers
    embedding, head, layers, norm = (parameters[i] for i in (0, 1, slice(2, 11), 11))
    half, group = MODEL.head_dim // 2, MODEL.heads // MODEL.kv_heads

    def normed(x, scale):
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * scale

    def rotated(x_TNH):
        angle = np.arange(len(x_TNH))[:, None, None] * 10000.0 ** (-np.arange(half) / half)
        z = (x_TNH[..., :half] + 1j * x_TNH[..., half:]) * np.exp(1j * angle)
        return np.concatenate([z.real, z.imag], -1)

    total = []
    for row in rows:
        x = embedding[row[:-1]]
        for kind, norm1, down, norm2, gate, key, output, query, up, value in zip(kinds, *layers, strict=False):
            q, k, v = (np.einsum("td,dnh->tnh", normed(x, norm1), w) for w in (query, key, value))
            q, k, v = rotated(q), np.repeat(rotated(k), group, 1), np.repeat(v, group, 1)
            out = softmax_attention(q, k, v) if kind == "S" else linear_attention(q, k, v, model)
            x = x + np.einsum("tnh,nhd->td", out, output)
            y, z = normed(x, norm2) @ gate, normed(x, norm2) @ up
            x = x + (y / (1 + np.exp(-y)) * z) @ down
        logits = normed(x, norm) @ head
        total.append(np.log(np.exp(logits).sum(-1)) - logits[np.arange(len(x)), row[1:]])
    return float(np.mean(total))


@pytest.mark.parametrize(
    "model",
    [MODEL, *(pytest.param(model, marks=pytest.mark.training) for model in OTHERS)],
    ids=lambda model: model.attention,
)
def test_the_model_is_a_llama(model: Model) -> None:
    one = trained(ONE) if model is MODEL else linear_one(model)
    parameters = [x.astype(np.float64) for x in one["before"]]
    assert np.isclose(one["losses"][0], decoder_loss(parameters, tokens()[0], model), rtol=LOSS, atol=0)


@pytest.mark.full
def test_bfloat16_follows_float32() -> None:
    found, one = trained("ring/zigzag@fsdp=2,ring=4,chunk=4", "bfloat16"), trained(ONE)
    assert np.allclose(found["losses"], one["losses"], rtol=2e-3, atol=0)
    assert max(errors(found["gradients"], one["gradients"])) < 0.05


def jaxpr_of(plan: str, length: int = LENGTH) -> Any:
    run = training(plan, length)
    return jax.make_jaxpr(run.gradients)(run.abstract_parameters, run.abstract_batch).jaxpr


HIDDEN_SHARD = MODEL.hidden // 4  # of a parameter that four devices store


def logits(jaxpr: Any) -> Iterator[int]:
    """How many rows of a vocabulary each array of the program holds that is made of such rows; parameters have one for
    each hidden dimension."""
    for _, equation, _ in walk(jaxpr):
        for variable in equation.outvars:
            shape = variable.aval.shape
            if shape and shape[-1] == MODEL.vocabulary and shape[-2] not in (MODEL.hidden, HIDDEN_SHARD):
                yield int(np.prod(shape[:-1]))


def test_logits_of_the_sequence_are_never_materialised() -> None:
    most = max(logits(jaxpr_of("ring/striped@ring=4,chunk=4")))
    assert most == BATCH * 4  # sequences, rows of a chunk
    assert max(logits(jaxpr_of("ring/striped@ring=4,chunk=0"))) == BATCH * LENGTH // 4, "the test would see them"


def shapes(text: str) -> Iterator[list[int]]:
    """Of every array in a compiled program's text."""
    for kind, sizes in SHAPE.findall(text):
        if sizes and kind in ITEM_BYTES:
            yield [int(size) for size in sizes.split(",")]


@pytest.mark.training
def test_a_layer_gathers_parameters_and_never_the_sequence() -> None:
    sent = []
    for length in (LENGTH, 2 * LENGTH):
        text = training("ring/striped@ring=4,chunk=4,remat=attention", length).compile(FAST).as_text()
        sent.append(sent_bytes_by_opcode(collectives(parse_module(text))))
        rows = [int(np.prod(shape)) // MODEL.vocabulary for shape in shapes(text) if MODEL.vocabulary in shape]
        assert max(rows) < BATCH * length // 4, "no array holds the logits of all of a shard's rows"
    assert sent[0]["all-gather"] == sent[1]["all-gather"] > 0
    assert sent[1]["collective-permute"] == 2 * sent[0]["collective-permute"] > 0


@pytest.mark.training
def test_replicated_parameters_need_no_all_gather() -> None:
    text = training("ring/striped@ring=4,zero=0").compile(FAST).as_text()
    assert set(sent_bytes_by_opcode(collectives(parse_module(text)))) == {"collective-permute", "all-reduce"}


def permutes(remat: str) -> int:
    jaxpr = jaxpr_of(f"ring/striped@ring=4,remat={remat}")
    return sum(times for name, _, times in walk(jaxpr) if name == "ppermute")


def test_policies_say_what_is_computed_again() -> None:
    hops = MODEL.layers * 3 * 2  # of keys and values, forward
    assert permutes("full") - hops == permutes("attention") == permutes("dots") == permutes("none")


def test_a_gather_runs_again_without_its_attention() -> None:
    """Matrix products of attention, which alone have a batch: two of a tile forward, and five backward."""

    def products(remat: str) -> int:
        found = walk(without_dead_code(jaxpr_of(f"all_gather/striped@ring=4,remat={remat}")))
        return sum(
            times for name, each, times in found if name == "dot_general" and any(each.params["dimension_numbers"][1])
        )

    found = {remat: products(remat) for remat in REMAT}
    assert found["attention"] == found["dots"] == found["none"] and found["full"] * 7 == found["none"] * 9


def kept(plan: str) -> list[tuple[int, ...]]:
    """The shapes that loops over layers or chunks give: what the backward pass finds, and gradients."""
    found = [equation.outvars for name, equation, _ in walk(jaxpr_of(plan)) if name == "scan"]
    return [variable.aval.shape for variables in found for variable in variables]


@pytest.mark.parametrize("remat", REMAT)
def test_no_policy_keeps_gathered_parameters_or_the_inside_of_chunks(remat: str) -> None:
    shapes = kept(f"ring/striped@ring=4,chunk=4,remat={remat}")
    gathered = (MODEL.layers, MODEL.hidden, MODEL.feed_forward)
    inside = [shape for shape in shapes if MODEL.feed_forward in shape and not {MODEL.hidden, HIDDEN_SHARD} & {*shape}]
    assert shapes and gathered not in shapes and not inside


def test_whole_shards_keep_what_the_policy_says() -> None:
    widths = [kept(f"ring/striped@ring=4,chunk=0,remat={remat}") for remat in ("full", "none")]
    rows = [any(shape[-2:] == (LENGTH // 4, MODEL.feed_forward) for shape in shapes) for shapes in widths]
    assert rows == [False, True]


def shares(plan: str) -> list[set[int]]:
    """Into how many different shards arrays are cut: scales of norms, and other parameters, with Adam's moments."""
    run = training(plan)
    abstract = jax.eval_shape(lambda: run.make(0))
    found = []
    for part, sharding in zip(jax.tree.leaves(abstract), jax.tree.leaves(run.shardings), strict=True):
        if part.ndim:
            found.append((part.size // int(np.prod(sharding.shard_shape(part.shape))), part.shape))
    scales = [(MODEL.hidden,), (MODEL.layers, MODEL.hidden)]
    assert len(found) == 3 * 12 + 12, "parameters, two moments, and the gradients that are remembered"
    return [{share for share, shape in found if (shape in scales) == scale} for scale in (True, False)]


@pytest.mark.parametrize(
    ("plan", "scales", "others"),
    [
        ("ring@ring=8", 8, 8),
        ("ring@fsdp=2,ring=2,tensor=2", 4, 8),
        ("ring@data=2,ring=4", 4, 4),
        ("ring@ring=8,zero=0", 1, 1),
        ("ring@ring=4,tensor=2,zero=0", 1, 2),
    ],
)
def test_every_parameter_and_moment_has_its_shards(plan: str, scales: int, others: int) -> None:
    assert shares(plan) == [{scales}, {others}]


def test_the_first_stage_cuts_the_moments_alone() -> None:
    run = training("ring@fsdp=2,ring=2,tensor=2,zero=1")
    lie = run.shardings
    where = [{each.spec for each in jax.tree.leaves(part) if len(each.spec) > 1} for part in lie]
    assert all("ring" not in str(spec) for spec in where[0])
    assert any("ring" in str(spec) for spec in where[1])
    assert shares("ring@fsdp=2,ring=2,tensor=2,zero=1") == [{1, 4}, {2, 8}]


@pytest.mark.training
def test_the_first_stage_gathers_parameters_once_a_step() -> None:
    sent = [
        sent_bytes_by_opcode(
            collectives(parse_module(training(f"ring/contiguous@ring=4,zero={stage}").compile(FAST).as_text()))
        )
        for stage in (1, 3)
    ]
    own = sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(lambda: training("ring@ring=4").make(0).parameters)))
    assert sent[0]["all-gather"] == own * 4 * 3 // 4, "float32, what the three others have"
    assert sent[0]["all-gather"] < sent[1]["all-gather"]


@pytest.mark.training
def test_the_shards_are_really_there() -> None:
    state = trained(DEFAULT[2])["state"]  # of 8 devices, by which every matrix is cut
    for part in (state.parameters, state.optimizer):
        leaves = [leaf for leaf in jax.tree.leaves(part) if leaf.ndim > 2]
        assert leaves
        assert all(len(leaf.addressable_shards) == 8 for leaf in leaves)
        assert all(shard.data.size == leaf.size // 8 for leaf in leaves for shard in leaf.addressable_shards)


@pytest.mark.parametrize(
    ("plan", "why"),
    [
        ("ring@ring=8,chunk=5", "chunk=5 does not divide the 8 rows"),
        ("ring@ring=16", "needs 16 devices"),
        ("ring@tensor=4", "2 kv_heads cannot be divided over tensor=4"),
        ("rong", "Did you mean ring"),
    ],
)
def test_refusals_have_reasons(plan: str, why: str) -> None:
    with pytest.raises(BadInput, match=why):
        training(plan)


def test_parameters_that_cannot_be_sharded_are_refused() -> None:
    odd = Model(name="odd", hidden=36, feed_forward=48, layers=1, heads=4, kv_heads=4, head_dim=9, vocabulary=56)
    with pytest.raises(BadInput, match=r"hidden 36 cannot be divided over 8 devices\. Try zero=0, or 4 devices"):
        make_training(odd, "ring@ring=8", seq_len=64)
    with pytest.raises(BadInput, match="even head_dim"):
        make_training(odd, "ring@ring=4", seq_len=64)


def test_a_batch_of_another_shape_is_refused() -> None:
    run = training("ring@ring=2")
    with pytest.raises(BadInput, match=r"a step takes \(4, 65\)"):
        run.place(tokens()[0][:, :-1])
    placed = run.place(tokens()[0])
    assert list(np.asarray(placed.positions_T)[:3]) == [0, 2, 4]
    assert np.array_equal(np.asarray(placed.targets_BT)[:, :31], np.asarray(placed.tokens_BT)[:, 32:63])


@pytest.mark.training
@pytest.mark.parametrize("optimizer", [optax.lamb(1e-2), optax.sgd(0.5)], ids=["lamb", "sgd"])
def test_optimizers_that_measure_norms_are_the_single_devices(optimizer: optax.GradientTransformation) -> None:
    """Lamb scales each step by the norm of a whole parameter, and the clip by the norm of all gradients: inside a
    shard_map both would be the norms of shards."""
    clipped, found = optax.chain(optax.clip_by_global_norm(0.1), optimizer), []
    for plan in ("ring/striped@ring=2,tensor=2,chunk=4", ONE):
        run = make_training(MODEL, plan, seq_len=LENGTH, batch=BATCH, dtype="float32", optimizer=clipped)
        state, step = run.init(seed=0), run.compile(FAST)
        before = arrays(state.parameters)
        for batch in tokens():
            state, _ = step(state, run.place(batch))
        found.append(arrays(state.parameters))
    assert max(errors(*found)) < 1e-5 < 1e-3 < max(errors(found[1], before))
