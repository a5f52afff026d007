"""A plan as something to use: options of this command as YAML, Python that runs with this package, and the flags of
MaxText and the arguments of Transformer Engine where they have the scheme.

What those two take was read in their sources: AI-Hypercomputer/maxtext, `src/maxtext/configs/base.yml` and `types.py`
(August 2026); NVIDIA/TransformerEngine, `transformer_engine/jax/attention.py`, `jax/sharding.py` and
`jax/cpp_extensions/attention.py`, and `pytorch/attention/dot_product_attention/dot_product_attention.py` (August 2026).
"""

import shlex
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import yaml

from stripectl.core.linear_attention import LINEAR
from stripectl.core.model_config import Model
from stripectl.core.plan import BATCH_AXES, HEAD_AXES, SEQUENCE_AXES, Plan, parse_plan
from stripectl.core.workload import STEP, Workload, format_length
from stripectl.hardware.target import hardware_kind
from stripectl.results.measurement import Measurement
from stripectl.util.files import profile_names

# MaxText's context_parallel_strategy by scheme, and the flag of each axis.
OPTIONS = {"features": "feature-map"}  # of the command line, where a field is spelled otherwise
MAXTEXT_STRATEGIES = {"ring": "ring", "all_gather": "all_gather"}
MAXTEXT_AXES = {
    "data": "ici_data_parallelism",
    "fsdp": "ici_fsdp_parallelism",
    "ring": "ici_context_parallelism",
    "tensor": "ici_tensor_parallelism",
}
SPLASH = {  # flags of a tile's sides, by pass: queries, keys
    "forward": (("sa_block_q",), ("sa_block_kv", "sa_block_kv_compute")),
    "backward": (
        ("sa_block_q_dkv", "sa_block_q_dq"),
        ("sa_block_kv_dkv", "sa_block_kv_dkv_compute", "sa_block_kv_dq"),
    ),
}
TE_STRATEGIES = {"ring": "RING", "all_gather": "ALL_GATHER"}
TE_PYTORCH = {"ring": "p2p", "all_gather": "all_gather"}  # cp_comm_type; its causal mask supposes the zigzag order
TE_RESOURCES = {"data": "dp_resource", "fsdp": "fsdp_resource", "ring": "cp_resource", "tensor": "tp_resource"}
SNIPPET = """\
import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
from stripectl import positions, sequence_parallel_attention

plan, seq_len = "{plan}", {seq_len}
mesh = jax.make_mesh({sizes}, {axes}, (jax.sharding.AxisType.Auto,) * {count})
order = positions(plan, seq_len, mesh)  # permute tokens and targets by it once; rotary embeddings take it as positions
{documents}

@jax.jit
def attend(q, k, v):  # (batch, positions, heads, head_dim), in the plan's order; differentiable
    return sequence_parallel_attention(q, k, v, plan, mesh, mask="{mask}"{given})


sharding = NamedSharding(mesh, PartitionSpec({batch_axes}, {sequence_axes}, {head_axes}))
q = jnp.ones(({batch}, seq_len, {heads}, {head_dim}), "{dtype}", device=sharding)
k = jnp.ones(({batch}, seq_len, {kv_heads}, {head_dim}), "{dtype}", device=sharding)
v = jnp.ones(({batch}, seq_len, {kv_heads}, {value_dim}), "{dtype}", device=sharding)
print(attend(q, k, v).sharding)
"""


TRAINING = """\
{imports}import numpy as np
from stripectl.training.step import make_training

training = make_training({model}, "{plan}", seq_len={seq_len}, batch={batch}, dtype="{dtype}")
state = training.init(seed=0)
tokens = np.zeros(({batch}, {seq_len} + 1), int)  # yours, in natural order; the last of each is only a target
state, loss = training.step(state, training.place(tokens))
print(loss)
"""
CHANGING = "from dataclasses import replace\nfrom stripectl.core.model_config import Model\n"


def usage_of(m: Measurement) -> dict[str, Any]:
    """What to paste, by where; of MaxText and Transformer Engine `text` is None where they lack it, and `note` says
    what is lacking, or what to mind."""
    plan, kind = parse_plan(m.plan), hardware_kind(m.target)
    return {
        "yaml": as_yaml(m),
        "python": snippet(m.workload, plan),
        "maxtext": maxtext(m.workload, plan, kind, slices(m.target)),
        "transformer_engine": transformer_engine(m.workload, plan, kind),
    }


def slices(target: str) -> int:
    number = target.rpartition("*")[0]
    return int(number) if number.isdecimal() else 1


def plan_options(m: Measurement) -> dict[str, Any]:
    """Options of `stripectl bench` by which it computes the same again, by name."""
    work = m.workload
    shape: dict[str, Any] = {"model": work.model}
    if work.model not in profile_names("models") and work.passes != STEP:
        shape = {"heads": work.heads, "kv-heads": work.kv_heads, "head-dim": work.head_dim}
        shape |= {"v-head-dim": work.v_head_dim} if work.v_head_dim else {}
    found = {"plan": m.plan, "seqlen": format_length(work.seq_len), **shape}
    found |= {OPTIONS.get(name, name): value for name, value in not_in_profile(work).items()}
    found |= {"dtype": work.dtype, "pass": work.passes, "target": m.target, "method": m.method}
    if work.batch > 1:
        found["batch"] = work.batch
    if work.mask != "causal":
        found["mask"] = work.mask
    if work.query_len:
        found["query-len"] = format_length(work.query_len)
    if work.documents:
        found["documents"] = ",".join(map(format_length, work.documents))
    if m.flags:
        found["xla-flag"] = [f"{name}={value}" for name, value in m.flags.items()]
    return found


def as_yaml(m: Measurement) -> str:
    return yaml.safe_dump(plan_options(m), sort_keys=False, allow_unicode=True, width=1000)


def command_line(m: Measurement) -> str:
    """The command that obtains this number again."""
    values = {name: value if isinstance(value, list) else [value] for name, value in plan_options(m).items()}
    words = [word for name, each in values.items() for value in each for word in (f"--{name}", str(value))]
    return shlex.join(["stripectl", "bench", *words])


def not_in_profile(work: Workload) -> dict[str, Any]:
    """Layers and attention of a workload where they are not what the profile of its model says; of a model of one's
    own, which is not looked at, all of them."""
    if work.model in profile_names("models"):
        usual = vars(Model.load(work.model)) | ({} if work.passes == STEP else {"layers": None})
    elif work.passes == STEP:
        usual = {}
    else:
        usual = {field.name: field.default for field in fields(Workload)}
    found = {name: getattr(work, name) for name in ("layers", *LINEAR)}
    return {name: value for name, value in found.items() if name not in usual or value != usual[name]}


def snippet(work: Workload, plan: Plan) -> str:
    """A Python program that attends by the plan, or trains by it, on as many devices as it has."""
    if work.passes == STEP:
        sizes = {"seq_len": work.seq_len, "batch": work.batch, "dtype": work.dtype}
        changes = "".join(f", {name}={value!r}" for name, value in not_in_profile(work).items())
        model = f"replace(Model.load({work.model!r}){changes})" if changes else repr(work.model)
        return TRAINING.format(imports=CHANGING * bool(changes), model=model, plan=plan, **sizes)
    if work.query_len:
        return "# Inference is for `stripectl bench`: the library function takes as many queries as keys.\n"
    axes = plan.axes or {"ring": 1}
    starts = () if work.starts is None else tuple(work.starts.tolist())
    given = ", documents=documents" if starts else ""
    if work.attention == "linear":
        given = f', decay="{work.decay}", features="{work.features}"'

    def over(names: Sequence[str]) -> str:
        held = tuple(name for name in names if name in axes)
        return f"({', '.join(map(quoted, held))})" if len(held) > 1 else quoted(held[0]) if held else "None"

    return SNIPPET.format(
        plan=str(plan),
        seq_len=work.seq_len,
        sizes=tuple(axes.values()),
        axes=f"({', '.join(map(quoted, axes))}{',' * (len(axes) == 1)})",
        count=len(axes),
        mask=work.mask,
        given=given,
        documents=f"documents = jnp.array([{list(starts)}] * {work.batch})  # your starts\n" if starts else "",
        batch_axes=over(BATCH_AXES),
        sequence_axes=over(SEQUENCE_AXES),
        head_axes=over(HEAD_AXES),
        batch=work.batch,
        heads=work.heads,
        kv_heads=work.kv_heads,
        head_dim=work.head_dim,
        value_dim=work.value_dim,
        dtype=work.dtype,
    )


def quoted(name: str) -> str:
    return f'"{name}"'


def not_available(reason: str) -> dict[str, Any]:
    return {"text": None, "note": reason}


def unusual(work: Workload) -> str | None:
    """Why no flags are given for a workload, or None."""
    if work.query_len:
        return "Its context parallelism is for training."
    if work.attention != "softmax":
        return "Its context parallelism is of softmax attention."
    if work.documents or work.window.left is not None:
        return "The flags of its packing and windows are not known here."
    return None


def maxtext(work: Workload, plan: Plan, kind: str, slices: int) -> dict[str, Any]:
    """The flags of a MaxText run whose attention is the plan's, or why there are none."""
    strategy, strange = MAXTEXT_STRATEGIES.get(plan.scheme), set(plan.axes) - MAXTEXT_AXES.keys()
    if reason := unusual(work):
        return not_available(reason)
    if kind not in ("tpu", "gpu"):
        return not_available(f"MaxText's context parallelism is for TPUs and GPUs, not {kind}.")
    if strategy is None or strange:
        return not_available(f"MaxText has no {plan.scheme} on the axes {', '.join(plan.axes)}.")
    if work.mask != "causal" or plan.shards == 1:
        return not_available("MaxText's context parallelism is for causal masks and two devices of a sequence or more.")
    striped = plan.layout == "striped"
    if striped and (kind == "tpu" or strategy != "ring"):
        nearest = replace(plan, layout="zigzag")
        return not_available(
            f"MaxText orders tokens in stripes on GPUs alone, for a ring of packed sequences. The nearest it has is "
            f"{nearest}."
        )
    tpu_ring = kind == "tpu" and strategy == "ring"
    found: dict[str, Any] = {
        "max_target_length": work.seq_len,
        "per_device_batch_size": work.batch / plan.devices,
        "dtype": work.dtype,
        "attention": "flash" if kind == "tpu" else "cudnn_flash_te",
        **{flag: plan.size(axis) for axis, flag in MAXTEXT_AXES.items()},
        "context_parallel_strategy": strategy,
        "context_parallel_load_balance": str(plan.layout != "contiguous").lower(),
    }
    if plan.layout != "contiguous":
        found["context_parallel_reorder_strategy"] = "striped" if striped else "dual_chunk_swap"
    found |= {"packing": "true"} if striped else {}
    found |= {"use_tokamax_splash": "true"} if tpu_ring else {}
    found |= {"ring_scan_unroll": plan.unroll} if tpu_ring and plan.unroll > 1 else {}
    if kind == "tpu" and plan.tile:
        for passes, tile in plan.tiles.items():
            for names, side in zip(SPLASH[passes], tile, strict=True):
                found |= dict.fromkeys(names, side)
    text = " \\\n".join(f"{name}={value}" for name, value in found.items())
    return {"text": text, "note": " ".join(maxtext_notes(work, plan, kind, slices))}


def maxtext_notes(work: Workload, plan: Plan, kind: str, slices: int) -> list[str]:
    """What its flags do not say."""
    notes = [
        "Its tiles are Tokamax's or JAX's splash kernels'."
        if kind == "tpu"
        else "cuDNN chooses its tiles; MaxText has no flag for them."
    ]
    if kind == "tpu" and plan.scheme == "ring" and work.seq_len % plan.shards**2:
        notes.append(f"It asks for a length that {plan.shards**2} divides, which {work.seq_len} is not.")
    if kind == "tpu" and plan.layout == "zigzag" and plan.shards % 2:
        notes.append("It balances even rings alone.")
    if slices > 1:
        notes.append(f"Of the axis that spans the {slices} slices, put that factor in the dcn_ flag of the same name.")
    return notes


def transformer_engine(work: Workload, plan: Plan, kind: str) -> dict[str, Any]:
    """The arguments of Transformer Engine's attention in JAX, or why there are none. It runs the zigzag order on whole
    sequences (BSHD) and the striped one on packed ones (THD)."""
    strategy, strange = TE_STRATEGIES.get(plan.scheme), set(plan.axes) - TE_RESOURCES.keys()
    if reason := unusual(work):
        return not_available(reason)
    if kind != "gpu":
        return not_available(f"Transformer Engine runs on GPUs, not {kind}.")
    if strategy is None or strange or plan.shards == 1:
        axes = f"the axes {', '.join(plan.axes)}" if plan.axes else "one device"
        return not_available(f"Transformer Engine for JAX has no {plan.scheme} on {axes}.")
    causal, packed = work.mask == "causal", plan.layout == "striped"
    if packed and not causal:
        return not_available("Transformer Engine's packed sequences, which stripes need, take a causal mask alone.")
    balanced = causal and plan.layout != "contiguous"
    mask = "PADDING_CAUSAL_MASK" if packed else "CAUSAL_MASK" if causal else "NO_MASK"
    resources = ", ".join(f'{TE_RESOURCES[axis]}="{axis}"' for axis in plan.axes)
    order = "Striped" if packed else "DualChunkSwap"
    reorder = f"x = reorder_causal_load_balancing(x, ReorderStrategy.{order}, cp_size={plan.shards}, seq_dim=1)\n"
    text = (
        f"{reorder if balanced else ''}"
        f"with global_shard_guard(MeshResource({resources})):\n"
        f"    out = fused_attn(\n"
        f"        ...,\n"
        f"        attn_mask_type=AttnMaskType.{mask},\n"
        f"        qkv_layout=QKVLayout.{'THD_THD_THD' if packed else 'BSHD_BSHD_BSHD'},\n"
        f"        context_parallel_strategy=CPStrategy.{strategy},\n"
        f"        context_parallel_causal_load_balanced={balanced},\n"
        f'        context_parallel_axis="ring",\n'
        f"{'        stripe_size=1,' + chr(10) if packed else ''}"
        f"    )\n"
    )
    if causal and plan.layout == "zigzag":
        text += f'# in PyTorch: DotProductAttention(..., cp_comm_type="{TE_PYTORCH[plan.scheme]}")\n'
    return {"text": text, "note": "cuDNN chooses its tiles; Transformer Engine has no argument for them."}
