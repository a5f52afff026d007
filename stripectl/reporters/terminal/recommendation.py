"""The recommendation on a terminal: a card as wide as the screen, or plain lines where it is piped."""

import textwrap

from rich import box
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from stripectl.core.model_config import STEP_FIELDS
from stripectl.core.workload import format_length
from stripectl.reporters.terminal.screen import UNLIMITED_COLUMNS
from stripectl.results.labels import METHOD_WORDS, workload_label
from stripectl.results.recommendation import Recommendation
from stripectl.util.units import times, with_interval

MAX_OTHER_WORKLOADS = 8  # other workloads of the run that get a line
MAX_PANEL_COLUMNS = 130  # columns of a card, even on a wider screen, because longer lines are hard to read
LABEL = 12  # columns of the longest label, and the space after it


def recommendation_panel(found: Recommendation, width: int, where: str) -> RenderableType:
    """The card of a recommendation; `where` names the file with the snippets."""
    title, titles = panel_title(found), ", ".join(each.title for each in (found.use or {}).values())
    told = [*panel_rows(found), ("use", f"{titles}: {where}"), *other_workload_rows(found)]
    if width >= UNLIMITED_COLUMNS:
        lines = [Text(found.answer, style="bold"), Text(f"  {title}")]
        return Group(*lines, *(Text(f"  {name:{LABEL}}{value}") for name, value in told))
    inner = min(width, MAX_PANEL_COLUMNS)
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in told:
        table.add_row(name, Text(value, style="bold" if name in ("plan", "") else ""))
    head, about = ("\n".join(textwrap.wrap(words, inner - 4)) for words in (found.answer, title))
    return Panel(Group(Text(head, style="bold"), Text(about, style="dim"), table), width=inner, box=box.ROUNDED)


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
