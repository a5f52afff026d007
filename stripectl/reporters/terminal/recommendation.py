"""The recommendation on a terminal: a card as wide as the screen, or plain lines where it is piped."""

import textwrap

from rich import box
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from stripectl.reporters.recommendation_rows import other_workload_rows, panel_rows, panel_title
from stripectl.reporters.terminal.screen import UNLIMITED_COLUMNS
from stripectl.results.recommendation import Recommendation

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
