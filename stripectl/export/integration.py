"""A plan in a form to use: stripectl's own YAML and Python, and the configuration of other frameworks.

One file per integration, found by listing the folder `integrations`. An integration writes a text to paste, or says why
it cannot express a measurement's plan; a refusal ends in the nearest plan that the framework can run.
"""

import itertools
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from stripectl.core.kernel import kernels
from stripectl.core.layer_groups import layer_groups
from stripectl.core.mesh import BATCH_AXES, HEAD_AXES, RING_AXES, make_mesh
from stripectl.core.plan import Plan
from stripectl.core.scheme import schemes
from stripectl.core.validation import why_unsupported
from stripectl.core.workload import STEP, Workload
from stripectl.costs.defaults import with_names
from stripectl.hardware.target import TargetName
from stripectl.results.measurement import Measurement
from stripectl.results.recommendation import Usage
from stripectl.util.catalogue import Catalogue

NEAREST = ("ring", "all_gather", "usp", "ulysses")  # schemes that frameworks have, in the order of the offers
LAYOUTS = ("zigzag", "contiguous", "striped")


class Job(NamedTuple):
    """The input of an integration: a workload, the plan that was timed for it, and the target."""

    work: Workload
    plan: Plan
    target: TargetName

    @property
    def kind(self) -> str:
        return self.target.kind


class Snippet(NamedTuple):
    """A text to paste, and notes about it."""

    text: str
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Integration:
    """A framework that can run plans. `why_unsupported` says why a job cannot be expressed, or None; `write` is called
    only where it can be. `version` is the release whose sources were read; stripectl's own formats have none.
    `table_only` are the kernels that are table only here and that the framework can run; None where it runs none."""

    title: str
    write: Callable[[Job, Measurement], Snippet]
    why_unsupported: Callable[[Job], str | None] = lambda job: None
    version: str = ""
    table_only: Collection[str] | None = ()
    layer_masks: bool = False  # whether a text can name the masks of layers that differ

    def why_not(self, job: Job) -> str | None:
        """Why it cannot express a job, or None: because of its kernel, or of its plan."""
        kernel = kernels[job.plan.kernel] if job.plan.kernel else None
        if kernel and kernel.table_only and self.table_only is not None and kernel.name not in self.table_only:
            here = str(kernel.why_missing())
            return f"{self.title} has no option for {kernel.name} that stripectl knows of." if self.version else here
        if reason := self.why_unsupported(job):
            return reason
        if self.version and job.work.layer_masks and not self.layer_masks:
            return f"stripectl knows no option of {self.title} for the masks of these layers: {job.work.masks_text}."
        if self.version and job.plan.sliding:
            return f"{self.title} computes layers with windows as it computes other layers, but the plan does not."
        return None


integrations: Catalogue[Integration] = Catalogue("stripectl.export.integrations", "integration", "integration")


def usage_of(m: Measurement) -> dict[str, Usage]:
    """The texts to paste, by integration."""
    job = Job(m.workload, m.plan, m.target)
    return {name: _entry(each, job, m) for name, each in sorted(integrations.load()[0].items(), key=_ours_first)}


def _ours_first(item: tuple[str, Integration]) -> tuple[bool, str, str]:
    name, each = item
    return bool(each.version), each.title if each.version else "", name


def _entry(each: Integration, job: Job, m: Measurement) -> Usage:
    """One integration's entry in `usage_of`."""
    reason = each.why_not(job)
    if reason is None:
        text, notes = each.write(job, m)
        return Usage(title=each.title, version=each.version, text=text, notes=(*notes, *_parts_to_set(each, job)))
    near = nearest(each, job)
    offer = [f"The nearest plan that {each.title} runs is {near}."] if near else []
    return Usage(title=each.title, version=each.version, text=None, notes=(reason, *offer))


def _parts_to_set(each: Integration, job: Job) -> list[str]:
    """Notes of the parts of a step's layers, and of the values that the plan keeps, that a framework's text does not
    set."""
    if not each.version or job.work.passes != STEP:
        return []
    kept = [option for option in job.plan.changed_options if option.partition("=")[0] in ("remat", "offload")]
    missing = {"parts of the model": [*job.work.architecture.to_json()], "options of the plan": kept}
    return [
        f"These {what} are not in the text: {', '.join(parts)}. Set them in {each.title}."
        for what, parts in missing.items()
        if parts
    ]


def nearest(each: Integration, job: Job) -> Plan | None:
    """The first plan on the same number of devices that the framework can run, its own scheme first."""
    return next((plan for plan in _alternatives(job) if each.why_not(job._replace(plan=plan)) is None), None)


def _alternatives(job: Job) -> Iterator[Plan]:
    """Plans that shard a sequence over the same number of devices and can compute the workload, without tiles; with the
    plan's kernel first and then, where it is table only, with the machine's."""
    plan = job.plan
    others = {axis: plan.size(axis) for axis in (*BATCH_AXES, *HEAD_AXES)}
    over = plan.sequence_devices // (plan.size("tensor") if schemes[plan.scheme].row_axes else 1)
    machine, own = job.target.machine, [plan.kernel]
    if machine and plan.kernel and kernels[plan.kernel].table_only:
        own.append(machine.kernel)
    for kernel, scheme in itertools.product(own, dict.fromkeys((plan.scheme, *NEAREST))):
        for layout in dict.fromkeys((plan.layout, *LAYOUTS)):
            for mesh in _meshes(scheme, plan, over):
                near = Plan(scheme, layout, kernel, make_mesh({**others, **mesh}))
                if near.mesh and can_compute(near, job):
                    yield near


def can_compute(plan: Plan, job: Job) -> bool:
    """Whether a plan, with its kernels named, can compute the workload of a job on its machine."""
    if machine := job.target.machine:
        plan = with_names(plan, job.work, machine)
    return all(each.kernel for _, _, each in layer_groups(job.work, plan)) and not why_unsupported(
        plan, job.work, job.kind
    )


def _meshes(scheme: str, plan: Plan, over: int) -> Iterator[dict[str, int]]:
    """Sizes of a scheme's axes whose product is `over`."""
    if scheme == plan.scheme:
        yield {axis: plan.size(axis) for axis in (*RING_AXES, "ulysses")}
    elif scheme == "usp":
        yield from ({"ring": over // each, "ulysses": each} for each in (2, 4, 8) if over % each == 0)
    else:
        yield {"ulysses" if scheme == "ulysses" else "ring": over}


def not_training(work: Workload, title: str) -> str | None:
    """Why a training framework cannot compute a workload, whatever the plan, or None."""
    if work.query_len:
        return f"{title} shards sequences for training, but this is inference. Try --pass forward-backward."
    if work.attention != "softmax":
        return None  # each framework names its own linear layers
    if work.mask == "full":
        return f"this integration of {title} is for causal training, but the mask is full. Try --mask causal."
    return None


def batch_per_group(job: Job) -> int:
    """Sequences per data-parallel group of devices."""
    return job.work.batch // job.plan.product(BATCH_AXES)


def next_multiple(seq_len: int, multiple: int) -> int:
    """The shortest length of at least `seq_len` that is a multiple of `multiple`."""
    return -(-seq_len // multiple) * multiple
