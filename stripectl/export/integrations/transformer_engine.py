"""Transformer Engine: a JAX program around `fused_attn`. From release 2.20.2: `jax/attention.py`, `jax/sharding.py`,
`jax/cpp_extensions/attention.py`, and for PyTorch `dot_product_attention/context_parallel.py`. It runs the zigzag order
on whole sequences (BSHD) and the striped order on packed sequences (THD).
"""

from stripectl.core.mesh import BATCH_AXES
from stripectl.export.integration import Integration, Job, Snippet, next_multiple, not_training
from stripectl.results.measurement import Measurement

VERSION = "2.20.2"
STRATEGIES = {"ring": "RING", "all_gather": "ALL_GATHER"}
PYTORCH = {"ring": "p2p", "all_gather": "all_gather", "ulysses": "a2a", "usp": "a2a+p2p"}
AXES = {"data", "fsdp", "ring", "tensor"}
STRIPE = 128  # of gathered keys: with 1, every token of a shard is a segment, and memory grows with their number
PROGRAM = """\
import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
from transformer_engine.jax.attention import (
    AttnBiasType,
    AttnMaskType,
    AttnSoftmaxType,
    CPStrategy,
    QKVLayout,
    ReorderStrategy,
    SequenceDescriptor,
    fused_attn,
    reorder_causal_load_balancing,
)
from transformer_engine.jax.sharding import MeshResource, global_shard_guard

mesh = jax.make_mesh({sizes}, {axes}, (jax.sharding.AxisType.Auto,) * {count})
batch, length = {batch}, {seq_len}


def order(x):  # tokens, targets, positions and segment ids, once
    return {reorder}


{describe}


def attend(q, k, v, described):
    return fused_attn(
        (q, k, v),
        bias=None,
        sequence_descriptor=described,
        seed=None,
        attn_bias_type=AttnBiasType.NO_BIAS,
        attn_mask_type=AttnMaskType.{mask},
        qkv_layout=QKVLayout.{qkv},
        softmax_type=AttnSoftmaxType.VANILLA_SOFTMAX,
        scaling_factor={head_dim} ** -0.5,
        dropout_probability=0.0,
        is_training=True,
        max_segments_per_seq={segments},
        window_size={window},
        context_parallel_strategy=CPStrategy.{strategy},
        context_parallel_causal_load_balanced={balanced},
        context_parallel_axis="ring",
        stripe_size={stripe},
    )


with jax.set_mesh(mesh), global_shard_guard(MeshResource({resources})):
    place = NamedSharding(mesh, PartitionSpec({batch_axis}, "ring", {head_axis}, None))
    q = jnp.ones((batch, length, {heads}, {head_dim}), "{dtype}", device=place)
    k = jnp.ones((batch, length, {kv_heads}, {head_dim}), "{dtype}", device=place)
    v = jnp.ones((batch, length, {kv_heads}, {value_dim}), "{dtype}", device=place)
    print(jax.jit(attend)(q, k, v, described).sharding)
"""
WHOLE = "described = SequenceDescriptor.from_seqlens(jnp.full((batch,), length, jnp.int32))"
PACKED = """\
starts = jnp.array({starts})  # of documents, yours
segment = jnp.searchsorted(starts, jnp.arange(length), side="right")  # from 1
position = jnp.arange(length) - starts[segment - 1]
ids, positions = (order(jnp.tile(each.astype(jnp.int32), (batch, 1))) for each in (segment, position))
described = SequenceDescriptor.from_segment_ids_and_pos(ids, positions)"""


def why_unsupported(job: Job) -> str | None:
    work, plan, ring = job.work, job.plan, job.plan.size("ring")
    if reason := not_training(work, "Transformer Engine"):
        return reason
    if work.attention != "softmax":
        return "Transformer Engine has no linear attention."
    if job.kind != "gpu":
        return f"Transformer Engine runs on GPUs, not {job.kind}."
    if plan.sequence_devices == 1:
        return "Each sequence is on one device: fused_attn without context_parallel_ arguments is enough."
    if plan.scheme not in STRATEGIES or plan.axes.keys() - AXES:
        torch = f' For PyTorch it has: DotProductAttention(cp_comm_type="{PYTORCH.get(plan.scheme)}").'
        return f"Transformer Engine for JAX has no {plan.scheme}.{torch * (plan.scheme in PYTORCH)}"
    if work.sinks:
        return "Transformer Engine for JAX has sinks only on one device: its ring and all_gather take VANILLA_SOFTMAX."
    if work.soft_cap:
        return "Transformer Engine's fused_attn has no soft cap of scores."
    if plan.layout != "striped" and (work.documents or work.has_windows):
        return "Transformer Engine for JAX shards packed sequences and windows only in stripes."
    chunk = {"zigzag": 2, "striped": stripe(job), "contiguous": 1}[plan.layout]
    if plan.layout == "zigzag" and ring % 2:
        return (
            f"Transformer Engine needs an even number of devices for zigzag, and ring={ring} is odd. Try another mesh."
        )
    if work.seq_len % (ring * chunk):
        more = next_multiple(work.seq_len, ring * chunk)
        return (
            f"Transformer Engine needs a length that is a multiple of {ring * chunk}, not {work.seq_len}. "
            f"Try --seqlen {more}."
        )
    return None


def stripe(job: Job) -> int:
    return STRIPE if job.plan.scheme == "all_gather" else 1


def write(job: Job, m: Measurement) -> Snippet:
    work, plan = job.work, job.plan
    packed, balanced = plan.layout == "striped", plan.layout != "contiguous"
    batch = "fsdp" if plan.size("fsdp") > 1 else "data" if plan.size("data") > 1 else None
    sizes = {batch: plan.product(BATCH_AXES)} if batch else {}
    sizes |= {axis: plan.size(axis) for axis in ("ring", "tensor") if plan.size(axis) > 1}
    names = {"data": "dp_resource", "fsdp": "fsdp_resource", "ring": "cp_resource", "tensor": "tp_resource"}
    starts = [0] if work.starts is None else work.starts.tolist()
    reorder = f"ReorderStrategy.{'Striped' if packed else 'DualChunkSwap'}, {plan.size('ring')}, 1"
    reorder += f", {stripe(job)}" if packed else ""
    text = PROGRAM.format(
        sizes=tuple(sizes.values()),
        axes=tuple(sizes),
        count=len(sizes),
        batch=work.batch,
        seq_len=work.seq_len,
        reorder=f"reorder_causal_load_balancing(x, {reorder})" if balanced else "x",
        describe=PACKED.format(starts=starts) if packed else WHOLE,
        mask="PADDING_CAUSAL_MASK" if packed else "CAUSAL_MASK",
        qkv="THD_THD_THD" if packed else "BSHD_BSHD_BSHD",
        segments=len(starts) if packed else 1,
        window=None if work.window.left is None else (work.window.left, 0),
        strategy=STRATEGIES[plan.scheme],
        balanced=balanced,
        stripe=stripe(job) if packed else None,
        resources=", ".join(f'{names[str(axis)]}="{axis}"' for axis in sizes),
        batch_axis=repr(batch),
        head_axis='"tensor"' if plan.size("tensor") > 1 else None,
        heads=work.heads,
        kv_heads=work.kv_heads,
        head_dim=work.head_dim,
        value_dim=work.value_dim,
        dtype=work.dtype,
    )
    return Snippet(text, _notes(job, m))


def _notes(job: Job, m: Measurement) -> list[str]:
    plan = job.plan
    notes = [
        f"Timed ({m.method}): {plan} on {job.target}. cuDNN chooses its tiles; Transformer Engine has no argument for "
        "them."
    ]
    if plan.scheme == "ring":
        notes.append("Its ring is unrolled unless NVTE_FUSED_RING_ATTENTION_USE_SCAN=1; windows need it unrolled.")
    if plan.layout == "striped" and plan.scheme == "all_gather":
        notes.append(f"Stripes are {STRIPE} tokens wide here, but were one token wide where the plan was timed.")
    if plan.size("data") > 1 and plan.size("fsdp") > 1:
        notes.append("It shards a batch only over fsdp, so the data axis is folded into fsdp.")
    if plan.layout == "zigzag":
        notes.append(f'For PyTorch: DotProductAttention(..., cp_comm_type="{PYTORCH[plan.scheme]}").')
    return notes


integration = Integration("Transformer Engine", write, why_unsupported, VERSION)
