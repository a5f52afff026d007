"""A search over simulated plans, in sentences."""

from collections.abc import Iterator

from stripectl.analysis.note import Finding, Note
from stripectl.core.lengths import format_length
from stripectl.results.run import Run
from stripectl.results.search_table import SearchTable
from stripectl.util.units import duration

MAX_REASONS = 6  # reasons that are named


def search_sentence(found: SearchTable) -> str:
    """How many plans were simulated, in how long, and how many have no time."""
    work, refused = found.workload, sum(found.refused.values())
    return (
        f"{len(found.plans):,} plans for {work.passes} of {format_length(work.seq_len)} tokens on {found.target} "
        f"simulated in {duration(found.took_s)}, {refused:,} refused; run.json holds all of them"
    )


def refusal_sentences(found: SearchTable) -> list[str]:
    """Why plans have no time, the most frequent reason first."""
    often = sorted(found.refused.items(), key=lambda item: -item[1])
    said = [f"{count:,} refused, for example: {reason}" for reason, count in often[:MAX_REASONS]]
    more = sum(count for _, count in often[MAX_REASONS:])
    return [*said, *([f"{more:,} refused for other reasons"] if more else [])]


def search_findings(run: Run) -> Iterator[Finding]:
    for each in run.searches:
        yield Finding(search_sentence(each), tuple(refusal_sentences(each)))


note = Note(label="search", find=search_findings, order=120)
