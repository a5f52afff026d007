"""Megatron: arguments of Megatron-LM's training. From release 0.19.2: `megatron/training/arguments.py`,
`core/model_parallel_config.py`, `core/transformer/transformer_config.py`; its attention is Transformer Engine's for
PyTorch (2.20.2, `dot_product_attention/context_parallel.py`), which always gives each device two chunks (zigzag).
"""

from stripectl.core.layout import parse_mask
from stripectl.core.workload import STEP, Workload
from stripectl.export.integration import Integration, Job, Snippet, batch_per_group, next_multiple, not_training
from stripectl.models.model_files import load_model
from stripectl.results.measurement import Measurement
from stripectl.util.json import Json

VERSION = "0.19.2"
AXES = {"data", "fsdp", "ring", "ulysses", "tensor"}
WINDOWED = ("all_gather", "a2a")
WITH_SINKS = ("a2a", "none")
BACKENDS = {"fa3": "flash"}  # `--attention-backend` for kernels that are table only here


def communication(job: Job) -> str | None:
    """`--cp-comm-type` of a plan; `none` for Megatron's sequence parallelism, which does not shard attention."""
    plan = job.plan
    ring, ulysses = plan.size("ring") > 1, plan.size("ulysses") > 1
    if plan.scheme in ("ring", "ulysses", "usp"):
        return "a2a+p2p" if ring and ulysses else "a2a" if ulysses else "p2p"
    return {"all_gather": "all_gather", "megatron_sp": "none"}.get(plan.scheme)


def why_unsupported(job: Job) -> str | None:
    work, plan, kind = job.work, job.plan, communication(job)
    if reason := not_training(work, "Megatron"):
        return reason
    if job.kind != "gpu":
        return f"Megatron runs on GPUs, not {job.kind}."
    if work.attention != "softmax":
        return (
            "Megatron's linear layers are gated delta nets (--experimental-attention-variant gated_delta_net), not the "
            "linear attention that was timed."
        )
    if work.v_head_dim:
        return "Megatron has value heads of another size only in multi-head latent attention."
    if plan.sequence_devices == 1:
        return "Each sequence is on one device: --context-parallel-size 1, Megatron's default, is enough."
    if kind is None or plan.axes.keys() - AXES:
        return f"Megatron has no {plan.scheme}; it has ring, all_gather, ulysses, usp and megatron_sp."
    if work.soft_cap:
        return "Megatron has no option for a soft cap of scores."
    if work.sinks and kind not in WITH_SINKS:
        return f"Megatron has no sinks (--softmax-type learnable) with --cp-comm-type {kind}; it has them with a2a."
    return None if kind == "none" else _sizes_unsupported(job, kind)


def _sizes_unsupported(job: Job, kind: str) -> str | None:
    work, plan, over = job.work, job.plan, job.plan.sequence_devices
    if plan.size("ring") > 1 and plan.layout != "zigzag":
        return f"Megatron gives two chunks of a sequence to each device (zigzag); it has no {plan.layout} layout."
    if work.seq_len % (2 * over):
        more = next_multiple(work.seq_len, 2 * over)
        return f"Megatron needs a length that is a multiple of {2 * over}, not {work.seq_len}. Try --seqlen {more}."
    if len({*windows_of(work)}) > 1 or (work.layer_masks and full_layer_period(work) is None):
        return f"Megatron has one window, and one full layer after the same number of others, not {work.masks_text}."
    if work.has_windows and kind not in WINDOWED:
        return f"Megatron has no windows with --cp-comm-type {kind}; it has them with {' and '.join(WINDOWED)}."
    heads, kv_heads = (each // plan.size("tensor") for each in (work.heads, work.kv_heads))
    if "a2a" in kind and (heads % plan.size("ulysses") or kv_heads % plan.size("ulysses") or kv_heads % 2):
        return f"Megatron's {kind} shards {kv_heads} key/value heads evenly over {plan.size('ulysses')} devices."
    return None


def windows_of(work: Workload) -> list[int]:
    """How many keys before a query its layers keep, of each window."""
    return [left for kind in work.kinds if (left := parse_mask(kind.mask).left) is not None]


def full_layer_period(work: Workload) -> int | None:
    """The number of layers from one without a window to the next, where all others have one and come first; None for
    other patterns. The layers of a model whose attention is timed alone are in its file."""
    if not work.layer_masks:
        return None
    runs = work.layer_masks if work.passes == STEP else load_model(work.model or "").layer_masks
    if [run.mask for run in runs[1:]] != ["causal"] or runs[1].layers != 1:
        return None
    return runs[0].layers + 1


def write(job: Job, m: Measurement) -> Snippet:
    work, plan, kind = job.work, job.plan, communication(job)
    found: dict[str, Json] = {
        "seq-length": work.seq_len,
        "max-position-embeddings": work.seq_len,
        "micro-batch-size": batch_per_group(job),
        "global-batch-size": work.batch,
        "num-attention-heads": work.heads,
        "kv-channels": work.head_dim,
    }
    found |= {"softmax-type": "learnable"} if work.sinks else {}
    if work.kv_heads != work.heads:
        found |= {"group-query-attention": "", "num-query-groups": work.kv_heads}
    if work.passes == STEP:
        found |= {"num-layers": work.layers, "hidden-size": work.hidden, "ffn-hidden-size": work.feed_forward}
    found |= {"bf16": ""} if work.dtype == "bfloat16" else {}
    found["tensor-model-parallel-size"] = plan.size("tensor")
    if plan.size("tensor") > 1:
        found["sequence-parallel"] = ""
    if kind != "none":
        found |= {"context-parallel-size": plan.sequence_devices, "cp-comm-type": kind}
    if kind == "a2a+p2p":
        found["hierarchical-context-parallel-sizes"] = f"{plan.size('ulysses')} {plan.size('ring')}"
    for left in windows_of(work):
        found["window-size"] = f"{left},0"
    if period := full_layer_period(work):
        found["window-attn-skip-freq"] = period
    if work.documents:
        found["dataloader-inter-document-masking"] = ""
    if plan.size("fsdp") > 1:
        found |= {"use-megatron-fsdp": "", "data-parallel-sharding-strategy": "optim_grads_params"}
        found |= {"num-distributed-optimizer-instances": plan.size("data")} if plan.size("data") > 1 else {}
    if backend := BACKENDS.get(plan.kernel):
        found["attention-backend"] = backend
    text = " \\\n".join(f"--{name} {value}".rstrip() for name, value in found.items())
    return Snippet(text + "\n", _notes(job, m, kind))


def _notes(job: Job, m: Measurement, kind: str | None) -> list[str]:
    flash = job.plan.kernel in BACKENDS
    chooses = "FlashAttention" if flash else "cuDNN or FlashAttention"
    notes = [
        f"Timed ({m.method}): {job.plan} on {job.target}. {chooses} chooses its tiles.",
        "Append these arguments to your command. Before Blackwell, CUDA_DEVICE_MAX_CONNECTIONS must be 1.",
    ]
    if flash:
        notes.append(
            "--attention-backend flash runs FlashAttention-3 on Hopper where it is installed, else FlashAttention-2."
        )
    if kind and "a2a" in kind:
        notes.append(
            "Megatron gives two chunks of tokens to each context device and reorders them after the all-to-all."
        )
    if kind == "all_gather":
        notes.append("Megatron's help says allgather, but Transformer Engine accepts only all_gather.")
    if job.work.documents:
        notes.append("Megatron computes only the scores inside documents, from cu_seqlens of its data loader.")
    return notes


integration = Integration("Megatron", write, why_unsupported, VERSION, table_only=BACKENDS, layer_masks=True)
