"""Workloads that fit a target's memory with no plan of a run, and the devices that would be enough."""

from collections.abc import Hashable
from dataclasses import dataclass, replace

from stripectl.analysis.note import Note
from stripectl.core.defaults import with_usual_tiles
from stripectl.core.lengths import format_length
from stripectl.core.mesh import make_mesh
from stripectl.core.plan import Plan
from stripectl.core.scheme import schemes
from stripectl.core.validation import why_unsupported
from stripectl.results.fit import Fit, memory_fit
from stripectl.results.measurement import Measurement
from stripectl.results.run import Run
from stripectl.simulate.step_memory import predicted_peak_bytes
from stripectl.util.units import nbytes

MAX_WIDENING = 2**6  # the largest multiple of a plan's devices that is tried


@dataclass(frozen=True)
class MemoryShortage:
    """The plan of a workload that needs the least memory, which is too much, and the plan on enough devices; None where
    their number is unknown."""

    least: Measurement
    wider: Plan | None

    @property
    def sentences(self) -> str:
        """What is missing, and what to try."""
        m, wider = self.least, self.wider
        tokens = format_length(m.workload.seq_len)
        advice = f"{wider.devices} devices: {wider} is predicted to fit" if wider else "a shorter sequence"
        return (
            f"no plan for {m.workload.passes} of {tokens} tokens fits {m.target}. {m.plan} needs the least: "
            f"{nbytes(m.peak_bytes)} per device, which has {nbytes(m.hbm_bytes)}. Try {advice}."
        )


def memory_shortages(run: Run) -> list[MemoryShortage]:
    """One for each workload and target of which every plan was refused, and some for its memory."""
    groups: dict[Hashable, list[Measurement]] = {}
    for m in run.results:
        groups.setdefault((m.workload, m.target), []).append(m)
    found = list[MemoryShortage]()
    for group in groups.values():
        over = [m for m in group if memory_fit(m) == Fit.EXCEEDS]
        if over and all(m.status == "refused" for m in group):
            least = min(over, key=lambda m: m.peak_bytes or 0)
            found.append(MemoryShortage(least, plan_on_enough_devices(least)))
    return found


def plan_on_enough_devices(m: Measurement) -> Plan | None:
    """The plan of a measurement with the fewest more devices along its scheme's first axis with which the simulation
    fits in memory; None where their number is unknown."""
    plan = m.plan
    axis = next((axis for axis in schemes[plan.scheme].axes if plan.size(axis) > 1), None)
    if axis is None or not m.hbm_bytes:
        return None
    for times in (2**power for power in range(1, MAX_WIDENING.bit_length())):
        mesh = make_mesh({**plan.axes, axis: plan.size(axis) * times})
        wider = replace(plan, mesh=mesh).without_tiles()
        kind = m.target.kind
        if why_unsupported(wider, m.workload, kind):
            return None
        wider = with_usual_tiles(wider, m.workload, kind)
        needs = predicted_peak_bytes(m.workload, wider, kind)
        if memory_fit(replace(m, method="simulated", peak_bytes=needs)) == Fit.FITS:
            return wider
    return None


note = Note(
    label="memory", find=lambda run: [each.sentences for each in memory_shortages(run)], order=100, in_reports=False
)
