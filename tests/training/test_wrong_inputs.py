"""Wrong inputs of the library: each is refused with advice in the library's own words, and a call that follows the
advice passes."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

import stripectl
from stripectl import BadInput, Packing, padded_length, positions, rotary, sequence_parallel_attention
from stripectl.training.step import make_training

BATCH, LENGTH, HEADS, KV_HEADS, SIZE = 2, 32, 4, 2, 8


def numbers(*shape: int, dtype: str = "float32") -> np.ndarray:
    return np.linspace(-1, 1, int(np.prod(shape))).reshape(shape).astype(dtype)


def mesh_of(**sizes: int) -> jax.sharding.Mesh:
    return jax.make_mesh(tuple(sizes.values()), tuple(sizes), (AxisType.Auto,) * len(sizes))


Q, K = numbers(BATCH, LENGTH, HEADS, SIZE), numbers(BATCH, LENGTH, KV_HEADS, SIZE)
SINKS = np.linspace(-1, 1, HEADS, dtype=np.float32)
RING = mesh_of(ring=2)
ATTENTION = {"q": Q, "k": K, "v": K, "plan": "ring/zigzag", "mesh": RING}


def attend(q: Any, k: Any, v: Any, plan: Any, mesh: Any, **others: Any) -> Any:
    return sequence_parallel_attention(q, k, v, plan, mesh, **others)


def passes(function: Callable, given: dict[str, Any]) -> None:
    """Do nothing where the function takes what is given; attention is traced, with documents and gates that are
    known."""
    if function is not attend:
        function(**given)
        return
    traced = {name: given[name] for name in "qkv"}
    jax.eval_shape(partial(attend, **{name: x for name, x in given.items() if name not in traced}), **traced)


class Wrong(NamedTuple):
    """What is wrong in a call that is right otherwise, a part of the message, and what the message advises (nothing
    where it says no more than what the argument must be)."""

    change: Mapping[str, Any]
    says: str
    better: Mapping[str, Any] | None = None
    function: Callable = attend
    usual: Mapping[str, Any] = ATTENTION


STARTS = np.array([[0, 10, LENGTH], [0, 4, 20]])
IDS = np.repeat(np.array([[1, 2], [1, 2]]), LENGTH // 2, axis=1)
PERMUTED = IDS[:, positions("ring/zigzag@ring=2", LENGTH)]
WIDE = {"q": numbers(2, 32, 4, 8), "k": numbers(2, 32, 4, 8), "v": numbers(2, 32, 4, 8)}
GDN = {**ATTENTION, **WIDE, "plan": "lasp2/contiguous", "recurrence": "gdn"}
LOG, WRITE = -np.ones((2, 32, 4), np.float32), np.full((2, 32, 4), 0.5, np.float32)
GATES = {"log_gate": LOG, "write": WRITE}

ARRAYS = {
    "q is a list": Wrong({"q": Q.tolist()}, "Try jnp.asarray(q)", {"q": np.asarray(Q.tolist(), np.float32)}),
    "k is None": Wrong({"k": None}, "it is a NoneType, not an array. Try jnp.asarray(k)"),
    "v has no batch": Wrong({"v": K[0]}, "Try v[None]"),
    "q has no heads": Wrong({"q": Q[:, :, 0]}, "q[:, :, None] for one head", {**dict.fromkeys("qkv", Q[:, :, :1])}),
    "q is empty": Wrong({"q": Q[:, :0]}, "none of them 0"),
    "q is float64": Wrong({"q": Q.astype("float64")}, "q.astype('float32')", {"q": Q}),
    "q is float16": Wrong({"q": Q.astype("float16")}, "attention takes bfloat16 or float32", {"q": Q}),
    "q is integers": Wrong({"q": Q.astype("int32")}, "q is int32", {"q": Q}),
    "k is bfloat16": Wrong({"k": K.astype(jnp.bfloat16)}, "k.astype(q.dtype)", {"k": K}),
    "batches differ": Wrong({"k": K[:1], "v": K[:1]}, "k has a batch of 1, and q of 2. Try equal batches", {}),
    "fewer keys": Wrong({"k": K[:, :16], "v": K[:, :16]}, "as many queries as keys", {}),
    "fewer values": Wrong({"v": K[:, :16]}, "v has 16 positions, and q has 32", {}),
    "other head_dim": Wrong({"k": K[..., :4]}, "heads of k have 4 elements, and heads of q 8. Try equal sizes", {}),
    "fewer heads of v": Wrong({"v": K[:, :, :1]}, "Try jnp.repeat(x, times, axis=2) for 2 each", {}),
    "heads that cannot share": Wrong(
        {"k": numbers(2, 32, 3, 8), "v": numbers(2, 32, 3, 8)}, "Try k and v with 1 or 2 or 4 heads", {}
    ),
}
DOCUMENTS = {
    "documents are a list": Wrong({"documents": [[0, 10]]}, "Try jnp.asarray(documents)"),
    "documents are floats": Wrong(
        {"documents": STARTS.astype(float)}, "documents.astype('int32')", {"documents": STARTS.astype("int32")}
    ),
    "documents have one dimension": Wrong(
        {"documents": STARTS[0]}, "Try jnp.tile(documents, (2, 1))", {"documents": np.tile(STARTS[0], (2, 1))}
    ),
    "documents of another batch": Wrong({"documents": STARTS[:1]}, "documents with 2 rows", {"documents": STARTS}),
    "starts padded with 0": Wrong(
        {"documents": np.array([[0, 10, 0], [0, 4, 20]])},
        "Try 32 in place of the padding 0",
        {"documents": STARTS},
    ),
    "starts padded with -1": Wrong(
        {"documents": np.array([[0, 4, 20], [0, 10, -1]])}, "Try 32 in place of the padding -1", {"documents": STARTS}
    ),
    "unsorted starts": Wrong(
        {"documents": np.array([[0, 20, 10], [0, 4, 20]])},
        "Try numpy.sort(documents, axis=1)",
        {"documents": np.array([[0, 10, 20], [0, 4, 20]])},
    ),
    "starts twice": Wrong({"documents": np.array([[0, 4, 4], [0, 4, 20]])}, "sequence 0 has [0, 4, 4]"),
    "starts without 0": Wrong(
        {"documents": np.array([[10, 20], [4, 20]])}, "for starts, put 0 before them", {"documents": STARTS}
    ),
    "starts behind the end": Wrong({"documents": np.array([[0, 40], [0, 4]])}, "from 0 to less than 32"),
    "lengths": Wrong(
        {"documents": np.array([[10, 22], [4, 28]])},
        "For lengths, try Packing.from_lengths(documents, 32).starts",
        {"documents": Packing.from_lengths(np.array([[10, 22], [4, 28]]), 32).starts},
    ),
    "segment ids as starts": Wrong({"documents": IDS}, "try segment_ids=documents", {"segment_ids": PERMUTED}),
    "a start for each token": Wrong({"documents": np.tile(np.arange(32), (2, 1))}, "Try segment_ids=documents"),
    "no starts": Wrong({"documents": STARTS[:, :0]}, "documents hold 0 positions"),
    "both": Wrong({"documents": STARTS, "segment_ids": PERMUTED}, "Try one of them", {"segment_ids": PERMUTED}),
    "starts as segment ids": Wrong({"segment_ids": STARTS}, "or documents= for", {"documents": STARTS}),
    "segment ids in the order of the text": Wrong(
        {"segment_ids": IDS}, "segment_ids[:, positions(plan, seq_len)]", {"segment_ids": PERMUTED}
    ),
    "segment ids that come back": Wrong(
        {"plan": "ring/contiguous", "segment_ids": np.tile([1, 2], (2, 16))},
        "a number of its own for each run of tokens",
        {"plan": "ring/contiguous", "segment_ids": IDS},
    ),
    "segment ids are bools": Wrong(
        {"segment_ids": PERMUTED == 1}, "segment_ids.astype('int32')", {"segment_ids": (PERMUTED == 1).astype("int32")}
    ),
    "documents of linear attention": Wrong(
        {"plan": "lasp2/contiguous", "documents": STARTS}, "Omit", {"plan": "lasp2/contiguous"}
    ),
}
RECURRENCES = {
    "no gates": Wrong({}, "gates={'log_gate': ..., 'write': ...}", {"gates": GATES}, usual=GDN),
    "gates in a list": Wrong({"gates": [LOG, WRITE]}, "gates={'log_gate': ...", {"gates": GATES}, usual=GDN),
    "one gate": Wrong({"gates": {"log_gate": LOG}}, "takes log_gate, write in gates", {"gates": GATES}, usual=GDN),
    "a gate of another name": Wrong(
        {"gates": {**GATES, "beta": LOG}}, "not log_gate, write, beta", {"gates": GATES}, usual=GDN
    ),
    "gates of no recurrence": Wrong({"gates": GATES}, "gates need a recurrence. Try recurrence=", {}),
    "a gate for each key": Wrong(
        {"gates": {"log_gate": np.ones((2, 32, 4, 8), np.float32), "write": WRITE}},
        "needs the shape (2, 32, 4)",
        {"gates": GATES},
        usual=GDN,
    ),
    "a gate for each head": Wrong(
        {"recurrence": "gla", "gates": {"log_gate": LOG}},
        "Try jnp.broadcast_to(log_gate[..., None], (2, 32, 4, 8))",
        {"recurrence": "gla", "gates": {"log_gate": np.broadcast_to(LOG[..., None], (2, 32, 4, 8))}},
        usual=GDN,
    ),
    "a decay in place of its logarithm": Wrong(
        {"gates": {**GATES, "log_gate": np.exp(LOG)}},
        "Try gates={'log_gate': jnp.log(factor), ...}",
        {"gates": {**GATES, "log_gate": np.log(np.exp(LOG))}},
        usual=GDN,
    ),
    "gates in the wrong order": Wrong(
        {"gates": {"log_gate": WRITE, "write": LOG}}, "jnp.log(factor)", {"gates": GATES}, usual=GDN
    ),
    "logits of a share": Wrong(
        {"gates": {**GATES, "write": 3 * WRITE - 3}}, "jax.nn.sigmoid", {"gates": GATES}, usual=GDN
    ),
    "a gate of 0": Wrong(
        {"gates": {**GATES, "log_gate": np.full_like(LOG, -np.inf)}},
        "Try jnp.maximum(log_gate, -1e4)",
        {"gates": {**GATES, "log_gate": np.full_like(LOG, -1e4)}},
        usual=GDN,
    ),
    "gates of bfloat16": Wrong(
        {"gates": {**GATES, "write": WRITE.astype(jnp.bfloat16)}},
        "write.astype('float32')",
        {"gates": GATES},
        usual=GDN,
    ),
    "a recurrence with a constant decay": Wrong(
        {"gates": GATES, "decay": "0.9"}, "Omit decay and features", {"gates": GATES}, usual=GDN
    ),
    "a recurrence by a softmax kernel": Wrong(
        {"gates": GATES, "plan": "lasp2/contiguous/xla"},
        "lasp2 needs a gated kernel; xla is a softmax kernel. Try kernel gated in the plan",
        {"gates": GATES, "plan": "lasp2/contiguous/gated"},
        usual=GDN,
    ),
    "a recurrence by a kernel of constant decays": Wrong(
        {"gates": GATES, "plan": "lasp2/contiguous/chunked"},
        "gdn needs a gated kernel, and chunked is a linear kernel. Try kernel gated in the plan",
        {"gates": GATES, "plan": "lasp2/contiguous/gated"},
        usual=GDN,
    ),
    "a recurrence by a ring": Wrong(
        {"gates": GATES, "plan": "ring/contiguous"},
        "Try scheme blockwise,lasp,lasp2,linear_scan",
        {"gates": GATES, "plan": "lasp/contiguous"},
        usual=GDN,
    ),
    "an unknown recurrence": Wrong(
        {"recurrence": "gdm", "gates": GATES}, "Did you mean gdn", {"gates": GATES}, usual=GDN
    ),
    "heads of a recurrence": Wrong({"q": Q[:, :, :2], "gates": GATES}, "for 4 heads each", {"gates": GATES}, usual=GDN),
    "a decay of softmax attention": Wrong(
        {"decay": "0.9"}, "Try ring/contiguous/chunked", {"decay": "0.9", "plan": "ring/contiguous/chunked"}
    ),
    "a decay above 1": Wrong(
        {"decay": 1.5, "plan": "lasp2/contiguous"},
        "Write the factor per token",
        {"decay": "0.9", "plan": "lasp2/contiguous"},
    ),
    "a decay of spread tokens": Wrong(
        {"decay": "0.9", "plan": "ring/striped/chunked"},
        "Try layout contiguous in the plan or decay='1'",
        {"decay": "0.9", "plan": "ring/contiguous/chunked"},
    ),
}
PLANS = {
    "an unknown scheme": Wrong({"plan": "rong/zigzag"}, "Did you mean ring", {}),
    "an unknown kernel": Wrong({"plan": "ring/zigzag/xlaa"}, "Did you mean xla", {"plan": "ring/zigzag/xla"}),
    "no layout": Wrong({"plan": "ring"}, "Write ring/striped", {"plan": "ring/striped"}),
    "a plan of another type": Wrong({"plan": 3}, "Try 'ring/striped'", {"plan": "ring/striped"}),
    "a mesh of another type": Wrong({"mesh": {"ring": 2}}, "Try jax.make_mesh", {}),
    "another mesh": Wrong({"plan": "ring/zigzag@ring=4"}, "Try ring/zigzag, without sizes", {}),
    "an axis of no plan": Wrong({"mesh": mesh_of(seq=2)}, "the mesh has an axis seq; plans have data, fsdp, ring", {}),
    "no mesh": Wrong({"mesh": None}, "Write ring/zigzag@ring=4, or pass a mesh"),
    "no shard_map": Wrong(
        {"plan": "ring/zigzag@ring=2", "mesh": None}, "or mesh=... outside a shard_map", {"plan": "ring/zigzag@ring=2"}
    ),
    "a scheme of decoding": Wrong(
        {"plan": "tree/contiguous"}, "Try scheme ring in the plan", {"plan": "ring/contiguous"}
    ),
    "a layout of another scheme": Wrong({"plan": "lasp/striped"}, "Try contiguous", {"plan": "lasp/contiguous"}),
    "an axis of another scheme": Wrong({"mesh": mesh_of(ulysses=2)}, "Try ulysses=1", {}),
    "a kernel of other devices": Wrong(
        {"plan": "ring/zigzag/pallas_tpu"}, "Try kernel xla in the plan", {"plan": "ring/zigzag/xla"}
    ),
    "a tile larger than a shard": Wrong(
        {"plan": "ring/zigzag@ring=2,tile=64"}, "Try a tile of at most 8", {"plan": "ring/zigzag@ring=2,tile=8"}
    ),
    "a length that does not divide": Wrong(
        {name: x[:, :30] for name, x in (("q", Q), ("k", K), ("v", K))},
        "Try 32 positions (stripectl.padded_length)",
        {},
    ),
    "heads that do not divide": Wrong({"mesh": mesh_of(tensor=8)}, "Try tensor=4", {"mesh": mesh_of(tensor=4)}),
    "a batch that does not divide": Wrong({"mesh": mesh_of(data=8)}, "Try data=2", {"mesh": mesh_of(data=2)}),
    "rows of megatron_sp": Wrong(
        {
            "plan": "megatron_sp/contiguous",
            "mesh": mesh_of(tensor=4),
            **{n: x[:, :30] for n, x in ATTENTION.items() if n in "qkv"},
        },
        "Try tensor=2",
        {"plan": "megatron_sp/contiguous", "mesh": mesh_of(tensor=2)},
    ),
    "an unknown mask": Wrong({"mask": "casual"}, "Did you mean causal", {"mask": "causal"}),
    "a window of no length": Wrong({"mask": "sliding:x"}, "Write tokens, or k, M", {"mask": "sliding:4k"}),
    "a window of linear attention": Wrong(
        {"mask": "sliding:4", "plan": "lasp2/contiguous"},
        "Try mask='causal'",
        {"mask": "causal", "plan": "lasp2/contiguous"},
    ),
    "scale is a text": Wrong({"scale": "1"}, "Try scale=head_dim**-0.5", {"scale": SIZE**-0.5}),
    "scale is nan": Wrong({"scale": float("nan")}, "Try scale=head_dim**-0.5", {"scale": SIZE**-0.5}),
    "scale is a vector": Wrong({"scale": np.ones(4)}, "Try one floating-point number", {"scale": np.ones(())}),
    "scale of linear attention": Wrong(
        {"scale": 0.5, "plan": "lasp2/contiguous"},
        "Try scale * q, and no scale",
        {"plan": "lasp2/contiguous", "q": Q / 2},
    ),
    "sinks per head of keys": Wrong({"sinks": np.zeros(2, np.float32)}, "Try one per head", {"sinks": SINKS}),
    "sinks of another dtype": Wrong({"sinks": SINKS.astype("int32")}, "sinks.astype('float32')", {"sinks": SINKS}),
    "no sink for a head": Wrong({"sinks": SINKS - np.inf}, "jnp.maximum(sinks, -1e30)", {"sinks": SINKS - 1e30}),
    "sinks of linear attention": Wrong(
        {"sinks": SINKS, "plan": "lasp2/contiguous"}, "Omit them", {"plan": "lasp2/contiguous"}
    ),
    "a soft cap of 0": Wrong({"soft_cap": 0}, "soft_cap must be a positive number", {"soft_cap": np.float32(50)}),
}
ROTARY = {"x_BTNH": Q, "positions": np.arange(LENGTH)}
ORDER = {"plan": "ring/zigzag@ring=4", "seq_len": 64}
TRAINING = {"model": "1b", "plan": "ring/striped@ring=2", "seq_len": 64, "dtype": "float32"}
OTHERS = {
    "x is not rotated": Wrong({"x_BTNH": Q[..., :7]}, "Try heads of 8 elements", {}, rotary, ROTARY),
    "x without a batch": Wrong({"x_BTNH": Q[0]}, "of an array with four dimensions", {}, rotary, ROTARY),
    "positions of another length": Wrong(
        {"positions": np.arange(5)}, "Try positions=stripectl.positions(plan, 32, mesh)", {}, rotary, ROTARY
    ),
    "positions are floats": Wrong({"positions": np.arange(32.0)}, "Try positions.astype('int32')", {}, rotary, ROTARY),
    "base is 0": Wrong({"base": 0}, "Try base=10000", {"base": 10000}, rotary, ROTARY),
    "an order of an odd length": Wrong(
        {"seq_len": 63}, "Try 64 positions (stripectl.padded_length)", {}, positions, ORDER
    ),
    "an order of no length": Wrong({"seq_len": 0}, "Try seq_len=1024", {"seq_len": 1024}, positions, ORDER),
    "padding of no mesh": Wrong({"plan": "ring/zigzag"}, "Write ring/zigzag@ring=4", {}, padded_length, ORDER),
    "lengths are flat": Wrong(
        {"lengths": [4, 2]}, "Try lengths=[[...]]", {"lengths": [[4, 2]]}, Packing.from_lengths, {}
    ),
    "a length of 0": Wrong(
        {"lengths": [[4, 0, 2]]}, "with zeros only behind", {"lengths": [[4, 2, 0]]}, Packing.from_lengths, {}
    ),
    "lengths that do not fit": Wrong(
        {"lengths": [[4, 2]], "seq_len": 5},
        "Try seq_len=6",
        {"lengths": [[4, 2]], "seq_len": 6},
        Packing.from_lengths,
        {},
    ),
    "a training of an odd length": Wrong({"seq_len": 63}, "Try seq_len=64", None, make_training, TRAINING),
    "a bench of an unknown option": Wrong({"seqlenn": "4k"}, "seqlen", None, stripectl.bench, {}),
    "a bench of two layers": Wrong({"layers": 2, "seqlen": "4k"}, "Add pass_='step'", None, stripectl.bench, {}),
}
WRONG = ARRAYS | DOCUMENTS | RECURRENCES | PLANS | OTHERS


def test_there_are_sixty() -> None:
    assert len(WRONG) >= 60


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_refused_with_advice_that_works(name: str) -> None:
    change, says, better, function, usual = WRONG[name]
    with pytest.raises(BadInput) as refused:
        function(**{**usual, **change})
    message = str(refused.value)
    assert says in message and "--" not in message and "Try ." not in message
    if better is not None:
        passes(function, {**usual, **better})
