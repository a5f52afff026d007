"""The longest sequence that fits in memory with a plan, by the compiler or the simulation, and by the formulas of the
ring attention paper."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from stripectl.analysis.note import Finding, Note
from stripectl.core.bounds import formula_lengths
from stripectl.core.lengths import format_length
from stripectl.results.fit import limit_sentences
from stripectl.results.labels import plan_label
from stripectl.results.measurement import Measurement
from stripectl.results.run import Run


@dataclass(frozen=True)
class LengthLimit:
    """The measurement at the longest sequence that fits, the first length that is refused and its reason, and the
    lengths by formula, where the memory of a device is known."""

    measurement: Measurement
    refused: int
    reason: str
    formulas: Mapping[str, int]

    @property
    def answer(self) -> str:
        """The length, of all devices and of one."""
        length, devices = self.measurement.workload.seq_len, self.measurement.plan.sequence_devices
        return f"{format_length(length)} tokens ({length}), {length // devices} per device"

    @property
    def notes(self) -> list[str]:
        """Why a longer sequence is refused, how near the limit of memory is, and the lengths by formula."""
        said = [f"{format_length(self.refused)} is refused: {self.reason}", *limit_sentences([self.measurement], "it")]
        if self.formulas:
            shown = ", ".join(f"{name} {value / 2**10:,.0f}k" for name, value in self.formulas.items())
            said.append(f"by formula, activations of one layer only (arXiv:2310.01889, Table 1): {shown}")
        return said


def length_limits(run: Run) -> list[LengthLimit]:
    """One for each plan whose longest sequence was searched."""
    return [
        LengthLimit(
            m,
            int(found.refused),
            str(found.reason),
            formula_lengths(m.workload, m.plan.sequence_devices, m.hbm_bytes) if m.hbm_bytes else {},
        )
        for m in run.results
        if (found := m.compiled_program and m.compiled_program.longest)
    ]


def limit_findings(run: Run) -> Iterator[Finding]:
    for each in length_limits(run):
        m = each.measurement
        yield Finding(f"{each.answer}: {plan_label(m)} {m.workload.passes}", tuple(each.notes), stands_out=True)


note = Note(label="longest", find=limit_findings, order=10, shown_only=True, in_reports=False)
