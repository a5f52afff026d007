"""Plans whose all-gathers are compiled as sums."""

from stripectl.analysis.explanation import gathers_sentence
from stripectl.analysis.note import Note
from stripectl.results.run import Run


def gathers_of_plans(run: Run) -> list[str]:
    return list(dict.fromkeys(filter(None, map(gathers_sentence, run.results))))


note = Note(label="note", find=gathers_of_plans, order=90, shown_only=True, most=3, in_reports=False)
