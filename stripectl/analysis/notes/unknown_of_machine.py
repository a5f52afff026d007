"""Facts about a machine that nobody publishes, and that predictions for it therefore lack."""

from stripectl.analysis.note import Note
from stripectl.results.run import Run


def unknown_of_predicted(run: Run) -> list[str]:
    machines = {m.target.hardware: m.target.machine for m in run.results if m.median_s and m.method != "measured"}
    return [f"{name}: {machine.unknown}." for name, machine in machines.items() if machine and machine.unknown]


note = Note(label="note", find=unknown_of_predicted, order=65)
