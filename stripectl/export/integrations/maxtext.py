"""MaxText: the flags of its trainer. From release 0.2.5: `configs/base.yml`, `configs/types.py`,
`layers/attention_op.py`, `utils/train_utils.py`, `kernels/attention/tokamax_ring_attention.py`.
"""

import math
from typing import Any

from stripectl.core.kernel import kernels
from stripectl.core.mesh import AXES, BATCH_AXES
from stripectl.core.workload import STEP
from stripectl.errors import BadInput
from stripectl.export.integration import Integration, Job, Snippet, next_multiple, not_training
from stripectl.hardware.placement import slices_spanned
from stripectl.results.measurement import Measurement
from stripectl.util.json import Json

VERSION = "0.2.5"
FLAGS = {"data": "data", "fsdp": "fsdp", "ring": "context", "ulysses": "context_usp_ulysses", "tensor": "tensor"}
TILED = ("splash", "pallas_tpu", "tokamax")  # kernels whose tiles are splash's too
COMMAND = "python3 -m maxtext.trainers.pre_train.train"


def strategy(job: Job) -> str | None:
    """`context_parallel_strategy` of a plan."""
    ring, ulysses = job.plan.size("ring") > 1, job.plan.size("ulysses") > 1
    if job.plan.scheme in ("ring", "ulysses", "usp"):
        return "usp" if ring and ulysses else "ulysses" if ulysses else "ring"
    return "all_gather" if job.plan.scheme == "all_gather" else None


def why_unsupported(job: Job) -> str | None:
    work, plan = job.work, job.plan
    if reason := not_training(work, "MaxText"):
        return reason
    if work.attention != "softmax":
        return (
            "MaxText's linear layers are gated delta nets (decoder_block=qwen3_next), not the linear attention that "
            "was timed; their context parallelism needs context_parallel_load_balance=false."
        )
    if job.kind not in ("tpu", "gpu"):
        return f"MaxText's context parallelism is for TPUs and GPUs, not {job.kind}."
    if work.v_head_dim:
        return "MaxText has value heads of another size only in multi-head latent attention (attention_type=mla)."
    if work.has_windows:
        return (
            "MaxText's attention_type=local_sliding does not reach the layers of its default decoder block. The blocks "
            "with windows are gemma2, gemma3 and gpt_oss."
        )
    if plan.sequence_devices == 1:
        return "Each sequence is on one device, so MaxText needs no context parallelism: attention=flash is enough."
    if strategy(job) is None or plan.axes.keys() - FLAGS.keys():
        return f"MaxText has no {plan.scheme}; it has ring, all_gather, and on TPUs ulysses and usp."
    if reason := _softmax_unsupported(job):
        return reason
    return _sizes_unsupported(job) or (_tpu_unsupported(job) if job.kind == "tpu" else _gpu_unsupported(job))


def _softmax_unsupported(job: Job) -> str | None:
    """Why sinks or a soft cap of scores cannot be expressed."""
    name = strategy(job)
    if job.work.sinks and job.kind == "gpu":
        return "MaxText's flash attention on GPUs has no attention sinks."
    if job.work.sinks and name != "all_gather":
        return f"MaxText's {name} has no attention sinks."
    if job.work.sinks:
        return "MaxText has attention sinks only in the layers of decoder_block=gpt_oss."
    if job.work.soft_cap and job.kind == "gpu":
        return "MaxText's attention=cudnn_flash_te has no soft cap of scores."
    return None


def _sizes_unsupported(job: Job) -> str | None:
    """Why a mesh or a length cannot be expressed, on TPU and GPU."""
    work, plan, ring = job.work, job.plan, job.plan.size("ring")
    if plan.layout == "zigzag" and ring > 1 and (ring % 2 or work.seq_len % (2 * ring)):
        more = next_multiple(work.seq_len, 2 * ring)
        return (
            f"MaxText gives two chunks of a sequence to each of an even number of devices, and {work.seq_len} tokens "
            f"over {ring} devices do not divide so. Try an even number of devices and --seqlen {more}."
        )
    target = job.target.load()
    if plan.devices != target.devices:
        return (
            f"MaxText uses all {target.devices} devices of {job.target}, but the plan has {plan.devices}. Try a target "
            f"of {plan.devices}, or a mesh of {target.devices}."
        )
    try:
        spans = slices_spanned(target, plan.mesh or ())
    except BadInput as error:
        return str(error)
    if strategy(job) in ("ulysses", "usp") and max(spans.get("ring", 1), spans.get("ulysses", 1)) > 1:
        return f"MaxText's {strategy(job)} stays within a slice: its dcn_context_parallelism must be 1."
    return None


def _tpu_unsupported(job: Job) -> str | None:
    work, plan, name, ring = job.work, job.plan, strategy(job), job.plan.size("ring")
    over = plan.size("ulysses") * plan.size("tensor")
    if plan.layout == "striped" and ring > 1:
        return "MaxText orders tokens in stripes only on GPUs, for a ring of packed sequences."
    if name in ("ring", "usp") and work.seq_len % ring**2:
        more = next_multiple(work.seq_len, ring**2)
        return (
            f"MaxText's {name} needs a length that is a multiple of {ring**2}, not {work.seq_len}. Try --seqlen {more}."
        )
    if name in ("ulysses", "usp") and (work.kv_heads == 1 or work.kv_heads % over):
        return f"MaxText's {name} shards {work.kv_heads} key/value heads over {over} devices, at least one each."
    return None


def _gpu_unsupported(job: Job) -> str | None:
    plan, name = job.plan, strategy(job)
    if name in ("ulysses", "usp"):
        return f"MaxText's {name} is only for TPUs."
    if plan.layout == "striped" and name != "ring":
        return "MaxText orders tokens in stripes only for a ring."
    if job.work.documents and plan.layout != "striped":
        return "MaxText masks packed documents on GPUs only for a striped ring; another order trains with a wrong mask."
    return None


def write(job: Job, m: Measurement) -> Snippet:
    found = {**_shape(job), **_mesh(job), **_data(job), **(_kernel(job) if job.kind == "tpu" else {})}
    lines = [COMMAND, *(f"{name}={_word(value)}" for name, value in found.items())]
    return Snippet(" \\\n  ".join(lines) + "\n", _notes(job, m))


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _shape(job: Job) -> dict[str, Json]:
    work = job.work
    found: dict[str, Json] = {
        "hardware": job.kind,
        "max_target_length": work.seq_len,
        "per_device_batch_size": per_device(work.batch, job.plan.devices),
        "dtype": work.dtype,
        "attention": "flash" if job.kind == "tpu" else "cudnn_flash_te",
        "base_num_query_heads": work.heads,
        "base_num_kv_heads": work.kv_heads,
        "head_dim": work.head_dim,
    }
    found |= {"attn_logits_soft_cap": work.soft_cap} if work.soft_cap else {}
    if work.passes == STEP:
        sizes = ("hidden", "feed_forward", "layers", "vocabulary")
        flags = ("base_emb_dim", "base_mlp_dim", "base_num_decoder_layers", "vocab_size")
        found |= {flag: getattr(work, size) for flag, size in zip(flags, sizes, strict=True)}
    return found


def per_device(batch: int, devices: int) -> float:
    """The smallest number from which MaxText, which takes int(devices * number), obtains the batch."""
    value = batch / devices
    while int(devices * value) < batch:
        value = math.nextafter(value, math.inf)
    return value


def _mesh(job: Job) -> dict[str, Json]:
    plan, target = job.plan, job.target.load()
    name, balanced = strategy(job), plan.layout != "contiguous" and plan.size("ring") > 1
    flags = FLAGS | ({"ulysses": "context"} if name == "ulysses" else {})
    spans = slices_spanned(target, plan.mesh or ())
    axes = [axis for axis in AXES if axis in flags and (plan.size(axis) > 1 or axis in (*BATCH_AXES, "tensor"))]
    found: dict[str, Json] = {f"ici_{flags[axis]}_parallelism": plan.size(axis) // spans.get(axis, 1) for axis in axes}
    if target.slices > 1:
        found |= {f"dcn_{flags[axis]}_parallelism": spans.get(axis, 1) for axis in axes}
    found |= {"context_parallel_strategy": name, "context_parallel_load_balance": balanced}
    if balanced:
        found["context_parallel_reorder_strategy"] = "striped" if plan.layout == "striped" else "dual_chunk_swap"
    return found


def _data(job: Job) -> dict[str, Json]:
    """Packing, and a packed data set: the synthetic one is not packed, and a striped ring on it has a wrong mask."""
    starts = job.work.starts
    if starts is None and (job.plan.layout != "striped" or job.kind == "tpu"):
        return {"packing": False, "dataset_type": "synthetic"}
    limit = {"max_segments_per_seq": 1 if starts is None else len(starts)}
    return {"packing": True, **limit, "dataset_type": "grain", "grain_train_files": '"$GRAIN_TRAIN_FILES"'}


def _kernel(job: Job) -> dict[str, Json]:
    """Flags of splash: Tokamax's for ring, ulysses and usp, JAX's for all_gather."""
    plan, tokamax = job.plan, strategy(job) != "all_gather"
    found: dict[str, Json] = {"use_tokamax_splash": tokamax}
    if strategy(job) in ("ring", "usp") and plan.unroll > 1:
        found["ring_scan_unroll"] = 0 if plan.unroll >= plan.size("ring") - 1 else plan.unroll
    if not tokamax:
        found["sa_use_fused_bwd_kernel"] = plan.kernel == "pallas_tpu"
    if plan.tile is None or plan.kernel not in TILED:
        return found
    tile, back, kernel = plan.tiles["forward"], plan.tiles["backward"], kernels[plan.kernel]
    for prefix in ("", "eval_"):
        found |= {
            f"{prefix}sa_block_q": tile.block_q,
            f"{prefix}sa_block_kv": tile.block_kv,
            f"{prefix}sa_block_kv_compute": kernel.full_name(tile).block_kv_compute,
        }
    found |= {
        "sa_block_q_dkv": back.block_q,
        "sa_block_kv_dkv": back.block_kv,
        "sa_block_kv_dkv_compute": kernel.full_name(back).block_kv_compute,
    }
    if not tokamax and plan.kernel == "splash":
        found |= {"sa_block_q_dq": back.block_q, "sa_block_kv_dq": back.block_kv}
    return found


def _notes(job: Job, m: Measurement) -> list[str]:
    notes = [f"Timed ({m.method}): {job.plan} on {job.target}."]
    notes += _tpu_notes(job) if job.kind == "tpu" else _gpu_notes(job)
    notes.append("With model_name, remove the base_ flags and head_dim: MaxText rejects duplicates.")
    if _data(job)["packing"]:
        notes.append("Set GRAIN_TRAIN_FILES to your files: dataset_type=synthetic is never packed.")
    if job.work.batch < job.plan.devices:
        notes.append(f"MaxText loads {job.plan.devices} sequences per step and trains on {job.work.batch}.")
    if (slices := job.target.load().slices) > 1:
        notes.append(
            f"The dcn_ flags are the factors over the {slices} slices or nodes; the ici_ flags are those within each."
        )
    return notes


def _tpu_notes(job: Job) -> list[str]:
    plan, name, notes = job.plan, strategy(job), list[str]()
    if plan.kernel not in TILED:
        notes.append(
            f"{plan.kernel} was timed, but MaxText runs splash, with blocks of 512 unless you set sa_block_ flags."
        )
    if name == "all_gather":
        notes.append(
            "MaxText runs JAX's splash kernel once over all gathered keys; the timed plan runs it once per shard."
        )
    elif plan.kernel == "splash":
        notes.append(
            "MaxText's Tokamax kernel fuses its backward pass (5 matmuls per tile), while the timed splash kernel has "
            "two passes (7 matmuls), so backward times and tiles do not transfer."
        )
    at_once = kernels[plan.kernel].keys_at_once
    if at_once and plan.tile and not plan.tile.block_kv_compute and len(set(sizes := at_once(plan.tile))) > 1:
        masked, whole = sizes
        notes.append(f"sa_block_kv_compute is {masked}, as timed under a mask; whole tiles were timed with {whole}.")
    if name in ("ring", "usp"):
        notes.append(f"MaxText's ring has {plan.size('ring')} hops; the timed plan has one hop less.")
    if job.work.documents:
        notes.append("MaxText masks documents by segment ids and computes all tiles of the causal mask.")
    notes.append(
        "Not set here, but worth trying: sa_q_layout, sa_k_layout, sa_v_layout, dq_reduction_steps=3, "
        "use_max_logit_estimate, use_splash_scheduler, and scoped VMEM in LIBTPU_INIT_ARGS."
    )
    return notes


def _gpu_notes(job: Job) -> list[str]:
    notes = [
        "cuDNN chooses its tiles; MaxText has no flag for them.",
        f"MaxText {VERSION} needs Transformer Engine 2.19 or newer; 2.12 and 2.13 break cudnn_flash_te.",
    ]
    if strategy(job) == "ring":
        notes.append("Its ring is unrolled unless NVTE_FUSED_RING_ATTENTION_USE_SCAN=1 is set.")
    if job.plan.layout == "striped" and not job.work.documents:
        notes.append("One document fills a sequence, as timed; raise max_segments_per_seq to pack more.")
    return notes


integration = Integration("MaxText", write, why_unsupported, VERSION)
