"""YAML: a measurement as options of `stripectl bench`, and as the command that obtains it again."""

import shlex
from dataclasses import fields

import yaml

from stripectl.core.lengths import format_length
from stripectl.core.linear_attention import LINEAR
from stripectl.core.workload import STEP, Workload
from stripectl.export.integration import Integration, Job, Snippet
from stripectl.models.model_files import load_model
from stripectl.results.measurement import Measurement
from stripectl.util.files import profile_names
from stripectl.util.json import Json

OPTIONS = {"features": "feature-map"}  # of the command line, where a field has another name


def plan_options(m: Measurement) -> dict[str, Json]:
    """Options of `stripectl bench`, by name, that compute the same measurement again."""
    work = m.workload
    shape: dict[str, Json] = {"model": work.model}
    # Options name no sinks, no soft cap and no masks of layers.
    with_model = work.passes == STEP or work.sinks or work.soft_cap or work.layer_masks
    if work.model not in profile_names("models") and not with_model:
        shape = {"heads": work.heads, "kv-heads": work.kv_heads, "head-dim": work.head_dim}
        shape |= {"v-head-dim": work.v_head_dim} if work.v_head_dim else {}
        shape |= {"key-heads": work.key_heads} if work.key_heads else {}
    found = {"plan": str(m.plan), "seqlen": format_length(work.seq_len), **shape}
    found |= {OPTIONS.get(name, name): value for name, value in not_in_profile(work).items()}
    found |= {"dtype": work.dtype, "pass": work.passes, "target": str(m.target), "method": m.method}
    if work.batch > 1:
        found["batch"] = work.batch
    if mask := mask_in_place(work):
        found["mask"] = mask
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


def not_in_profile(work: Workload) -> dict[str, Json]:
    """The workload's layers and attention where they differ from its model's profile; all of them for a model from a
    file, which is not read again."""
    if work.model in profile_names("models"):
        usual = vars(load_model(work.model)) | ({} if work.passes == STEP else {"layers": None})
    elif work.passes == STEP:
        usual = {}
    else:
        usual = {field.name: field.default for field in fields(Workload)}
    found = {name: getattr(work, name) for name in ("layers", *LINEAR)}
    return {name: value for name, value in found.items() if name not in usual or value != usual[name]}


def mask_in_place(work: Workload) -> str | None:
    """The mask of all layers in place of the masks of the workload's model, or None."""
    own = load_model(work.model).layer_masks if work.model in profile_names("models") else ()
    return work.mask if not work.layer_masks and (own or work.mask != "causal") else None


def write(job: Job, m: Measurement) -> Snippet:
    return Snippet(as_yaml(m), ["Save it as plan.yaml; stripectl bench plan.yaml obtains this number again."])


integration = Integration("YAML", write, table_only=None)
