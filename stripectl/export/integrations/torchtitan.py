"""torchtitan: the options of its trainer. Read at 0.3.0: `config/configs.py`, `trainer.py`,
`distributed/context_parallel/api.py`, `models/common/config_utils.py`. Its context parallelism gathers keys and values
before FlexAttention, and divides tokens head to tail (zigzag) or in order.
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
        return "torchtitan has the linear layers of its Qwen3.5 models alone (gated delta nets)."
    if work.v_head_dim:
        return "torchtitan has value heads of another size in its DeepSeek-V3 and Kimi models alone."
    if work.window.left is not None:
        return "torchtitan has no option for a window: its gpt_oss models have one of their own."
    if plan.sequence_devices == 1:
        return "A sequence lies on one device: --parallelism.context_parallel_degree=1, its default, is enough."
    if plan.scheme != "all_gather" or plan.axes.keys() - AXES:
        return f"torchtitan has no {plan.scheme}: its context parallelism gathers keys and values."
    if plan.layout == "striped":
        return "torchtitan divides tokens head to tail (zigzag) or in order, not in stripes."
    multiple = 2 * plan.size("ring") * plan.size("tensor")
    if work.seq_len % multiple:
        more = next_multiple(work.seq_len, multiple)
        return f"torchtitan needs a length that {multiple} divides, which {work.seq_len} is not. Try --seqlen {more}."
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
        f"What was timed ({m.method}): {plan} on {job.target}. torchtitan gathers keys and values once and runs "
        "FlexAttention, whose blocks are its own.",
        "Append these options to your command, after --module and --config.",
        "torchtitan masks every document of a sequence; a data set of whole sequences has one, as timed."
        if not work.documents
        else "torchtitan masks documents by the positions of its data loader.",
        "Its parameters are sharded over fsdp and context devices together.",
    ]
    return Snippet(" \\\n".join(f"--{name}={value}" for name, value in found.items()) + "\n", notes)


integration = Integration("torchtitan", write, why_unsupported, VERSION)
