"""A recommendation as rows of texts; every reporter shows the same."""

from stripectl.core.lengths import format_length
from stripectl.core.model import STEP_FIELDS
from stripectl.results.labels import METHOD_WORDS, workload_label
from stripectl.results.recommendation import Recommendation
from stripectl.util.units import times, with_interval

MAX_OTHER_WORKLOADS = 8  # other workloads of the run that get a line


def panel_title(found: Recommendation) -> str:
    return f"{found.workload.passes}, {workload_label(found.workload)} on {found.target}"


def other_workload_label(other: Recommendation, found: Recommendation) -> str:
    """The label that distinguishes another workload of the run from the card's."""
    own, first = other.workload, found.workload
    shapes = [each.without("seq_len", "passes", *STEP_FIELDS) for each in (own, first)]
    if other.target == found.target and shapes[0] == shapes[1]:
        return f"{format_length(own.seq_len)} {own.passes}"
    return panel_title(other)


def panel_rows(found: Recommendation) -> list[tuple[str, str]]:
    """(label, words) of a card."""
    return [(each.name, each.text) for each in found.statements]


def other_workload_rows(found: Recommendation) -> list[tuple[str, str]]:
    """A line for each other workload of the run."""
    told = list[tuple[str, str]]()
    for each in found.others[:MAX_OTHER_WORKLOADS]:
        taken = f"{with_interval(each.median_s, each.ci95_s)} {METHOD_WORDS[each.method]}"
        speed = f", {times(each.gain.value)}" if each.gain else ""
        told.append(("also", f"{other_workload_label(each, found)}: {each.names}, {taken}{speed}"))
    left = len(found.others) - MAX_OTHER_WORKLOADS
    return [*told, ("", f"{left} more in the report")] if left > 0 else told
