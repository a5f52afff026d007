"""torchtitan: the options of its trainer. From release 0.3.0: `config/configs.py`, `trainer.py`,
`distributed/context_parallel/api.py`, `models/common/config_utils.py`. Its context parallelism gathers keys and values
before FlexAttention, and orders tokens head to tail (zigzag) or naturally.
"""

from stripectl.export.integration import Integration, Job, Snippet, batch_per_group, next_multiple, not_training
from stripectl.results.measurement import Measurement

VERSION = "0.3.0"
AXES = {"data", "fsdp", "ring", "tensor"}


def why_unsupported(job: Job) -> str | None:
    work, plan = job.work, job.plan
    if reason := not_training(work, "torchtitan"):
        return reason
    if job.kind != "gpu":
        return f"torchtitan runs on GPUs, not {job.kind}."
    if work.attention != "softmax":
        return "torchtitan has linear layers only in its Qwen3.5 models (gated delta nets)."
    if work.v_head_dim:
        return "torchtitan has value heads of another size only in its DeepSeek-V3 and Kimi models."
    if work.has_windows:
        return "torchtitan has no option for a window; only its gpt_oss models have windows."
    if work.sinks:
        return "torchtitan has no option for sinks; only its gpt_oss models have sinks."
    if work.soft_cap:
        return "torchtitan has no option for a soft cap of scores."
    if plan.sequence_devices == 1:
        return "Each sequence is on one device: --parallelism.context_parallel_degree=1, its default, is enough."
    if plan.scheme != "all_gather" or plan.axes.keys() - AXES:
        return f"torchtitan has no {plan.scheme}: its context parallelism gathers keys and values."
    if plan.layout == "striped":
        return "torchtitan orders tokens head to tail (zigzag) or naturally, not in stripes."
    multiple = 2 * plan.size("ring") * plan.size("tensor")
    if work.seq_len % multiple:
        more = next_multiple(work.seq_len, multiple)
        return f"torchtitan needs a length that is a multiple of {multiple}, not {work.seq_len}. Try --seqlen {more}."
    return None


def write(job: Job, m: Measurement) -> Snippet:
    work, plan = job.work, job.plan
    found = {
        "training.seq_len": work.seq_len,
        "training.local_batch_size": batch_per_group(job),
        "training.global_batch_size": work.batch,
        "parallelism.data_parallel_replicate_degree": plan.size("data"),
        "parallelism.data_parallel_shard_degree": plan.size("fsdp"),
        "parallelism.context_parallel_degree": plan.size("ring"),
        "parallelism.context_parallel_load_balancer": "headtail" if plan.layout == "zigzag" else "None",
        "parallelism.tensor_parallel_degree": plan.size("tensor"),
    }
    notes = [
        f"Timed ({m.method}): {plan} on {job.target}. torchtitan gathers keys and values once and runs FlexAttention, "
        "with its own blocks.",
        "Append these options to your command, after --module and --config.",
        "torchtitan masks every document of a sequence; a data set of whole sequences has one each, as timed."
        if not work.documents
        else "torchtitan masks documents by the positions of its data loader.",
        "Its parameters are sharded over fsdp and context devices together.",
    ]
    return Snippet(" \\\n".join(f"--{name}={value}" for name, value in found.items()) + "\n", notes)


integration = Integration("torchtitan", write, why_unsupported, VERSION)
