"""Distortions of an answer: parts of the model that are not computed, tiles far from every measured or compiled tile or
without the soft cap of scores, and reference loops where the machine has a fused kernel. They lower its confidence and
mark the figures that they distort."""

from collections.abc import Iterable, Iterator

from stripectl.core.kernel import kernels
from stripectl.core.plan import Plan, UnreadablePlan
from stripectl.core.validation import why_unsupported
from stripectl.core.workload import Workload
from stripectl.hardware.profile import Hardware
from stripectl.results.findings import Distortion
from stripectl.results.measurement import Measurement
from stripectl.util.units import times

MARK = "\u2020"  # after a figure that is distorted


def distortions(m: Measurement) -> tuple[Distortion, ...]:
    """Everything that distorts the figures of a measurement."""
    if isinstance(m.plan, UnreadablePlan):
        return m.distortions
    return (*m.distortions, *far_tiles(m), *uncapped_tiles(m), *reference_loops(m))


def across_classes(plan: Plan, other: Plan) -> str:
    """That a speed-up of a plan over another compares a fused kernel with a reference loop; empty where it does not."""
    if isinstance(plan, UnreadablePlan) or isinstance(other, UnreadablePlan):
        return ""
    own, theirs = kernels[plan.kernel], kernels[other.kernel]
    if own.is_fused == theirs.is_fused:
        return ""
    return f"over the reference loop {theirs.name}" if own.is_fused else f"by the reference loop {own.name}"


def is_distorted(m: Measurement, figure: str) -> bool:
    """Whether a figure of a measurement (`time`, `memory`, `bytes` or `speedup`) is distorted."""
    return any(figure in each.figures for each in distortions(m))


def mark(m: Measurement, figure: str) -> str:
    """The mark after a figure of a measurement; empty where the figure is not distorted."""
    return f" {MARK}" if is_distorted(m, figure) else ""


def distortion_sentences(measurements: Iterable[Measurement]) -> list[str]:
    """One sentence for each distortion, once."""
    return list(dict.fromkeys(sentence(each) for m in measurements for each in distortions(m)))


def sentence(found: Distortion) -> str:
    """A distortion, its effect where it is known, and the figures that it distorts."""
    effect = ""
    if found.factor and found.factor > 1:
        effect = f"; attention is timed about {times(found.factor)} too long"
    elif found.factor:
        effect = f"; attention is timed about {times(1 / found.factor)} too short"
    return f"{found.fact}{effect} (distorts {', '.join(found.figures)})."


def far_tiles(m: Measurement) -> Iterator[Distortion]:
    """Tiles whose cost is far from every entry of the machine's table."""
    known = m.cost_source
    for source in [known, *known.apart.values()] if known else []:
        for costs in (source.entry, source.backward_costs):
            if costs and costs.is_far:
                near = costs.interpolated_from or "another shape"
                yield Distortion(
                    fact=f"the cost of a tile of {m.plan} is extrapolated from {near}", figures=("time", "speedup")
                )


def uncapped_tiles(m: Measurement) -> Iterator[Distortion]:
    """Tiles that have a soft cap of scores, and whose cost is from tiles without it."""
    known = m.cost_source
    if known and m.workload.soft_cap and m.median_s and not known.source.is_timed_here:
        yield Distortion(
            fact=f"the cost of a tile of {m.plan.kernel} does not include the soft cap of scores",
            figures=("time", "speedup"),
        )


def reference_loops(m: Measurement) -> Iterator[Distortion]:
    """Layers that a reference loop computes on a machine that has a fused kernel for their kind of attention."""
    machine = m.target.machine
    if machine is None or machine.kind == "cpu" or m.status == "refused":
        return
    for _, workload, plan in m.layers:
        if plan.kernel and (why := why_not_fused(workload, plan, machine)):  # a run may leave it open
            yield Distortion(fact=f"{plan.kernel} is a reference loop{why}", figures=("time", "speedup"))


def why_not_fused(workload: Workload, plan: Plan, machine: Hardware) -> str:
    """Why layers have no fused kernel, as the end of a sentence; empty where they have one, or none is known."""
    usual, own = kernels[machine.kernel], kernels[plan.kernel]
    if own.is_fused or own.keeps_all_scores or not usual.is_fused or usual.family != own.family:
        return ""
    fused = Plan(plan.scheme, plan.layout, usual.name, plan.mesh)
    reason = why_unsupported(fused, workload, machine.kind, None, machine.capability)
    cause = reason.fact if reason else "the plan names it"
    return f", much slower than {usual.name}: {cause}"
