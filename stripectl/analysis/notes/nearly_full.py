"""How many plans nearly fill the memory of a device."""

from stripectl.analysis.note import Note
from stripectl.results.fit import limit_sentences
from stripectl.results.run import Run


def memory_of_timed_plans(run: Run) -> list[str]:
    return limit_sentences(m for m in run.results if m.status == "ok")


note = Note(label="memory", find=memory_of_timed_plans, order=110, in_reports=False)
