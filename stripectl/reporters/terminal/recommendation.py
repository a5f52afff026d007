"""The recommendation on a terminal: a card as wide as the screen, or plain lines where it is piped."""

import textwrap
from collections.abc import Mapping
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from stripectl.analysis.explanation import crossover_phrase
from stripectl.core.model_config import MODEL_SIZES
from stripectl.core.workload import Workload, format_length
from stripectl.reporters.terminal.tables import METHOD_WORDS, UNLIMITED_COLUMNS
from stripectl.results.labels import workload_label
from stripectl.results.measurement import flags_text
from stripectl.util.units import NOTHING, nbytes, plural, rate, times, with_interval

MAX_OTHER_WORKLOADS = 8  # other workloads of the run that get a line
MAX_PANEL_COLUMNS = 130  # columns of a card, even on a wider screen, because longer lines are hard to read
LABEL = 12  # columns of the longest label, and the space after it


def has_choice(found: Mapping[str, Any] | None) -> bool:
    """Whether there were several plans to choose from."""
    return found is not None and any(each["runner_up"] for each in (found, *found["others"]))


def recommendation_panel(found: Mapping[str, Any], width: int, where: str) -> RenderableType:
    """The card of a recommendation; `where` names the file with the snippets."""
    title = f"{panel_title(found)} on {found['target']}"
    titles = ", ".join(each["title"] for each in found["use"].values())
    told = [*panel_rows(found), ("use", f"{titles}: {where}"), *other_workload_rows(found)]
    if width >= UNLIMITED_COLUMNS:
        lines = [Text(found["answer"], style="bold"), Text(f"  {title}")]
        return Group(*lines, *(Text(f"  {name:{LABEL}}{value}") for name, value in told))
    inner = min(width, MAX_PANEL_COLUMNS)
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in told:
        table.add_row(name, Text(value, style="bold" if name in ("plan", "") else ""))
    head, about = ("\n".join(textwrap.wrap(words, inner - 4)) for words in (found["answer"], title))
    return Panel(Group(Text(head, style="bold"), Text(about, style="dim"), table), width=inner, box=box.ROUNDED)


def panel_title(found: Mapping[str, Any]) -> str:
    work = Workload.from_json(found["workload"])
    return f"{work.passes}, {workload_label(work)}"


def other_workload_label(other: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    """The label that distinguishes another workload of the run from the card's."""
    own, first = (Workload.from_json(each["workload"]) for each in (other, found))
    shapes = [each.without("seq_len", "passes", *MODEL_SIZES) for each in (own, first)]
    if other["target"] == found["target"] and shapes[0] == shapes[1]:
        return f"{format_length(own.seq_len)} {own.passes}"
    return f"{panel_title(other)} on {other['target']}"


def time_line(found: Mapping[str, Any]) -> str:
    """The time with its interval and method."""
    return f"{with_interval(found['median_s'], found['ci95_s'])} {METHOD_WORDS.get(found['method'], found['method'])}"


def gain_line(found: Mapping[str, Any]) -> str:
    gain, bound = found["gain"], found["bound"] or {}
    if not gain:
        return NOTHING
    interval = f" [{gain['ci95'][0]:.2f}, {gain['ci95'][1]:.2f}]" if gain["ci95"] else ""
    most = f"; the balance of tiles allows {times(bound['attention_only'])}" if bound.get("reached") else ""
    most = f", {bound['above']} ({times(bound['attention_only'])})" if bound.get("above") else most
    return f"{times(gain['value'])}{interval} over {gain['over']}{most}"


def limits_text(found: Mapping[str, Any]) -> str:
    limits, first = found["bottleneck_shares"], found["bound_by"]
    if not limits:
        return f"{NOTHING}: the run has no simulation of this plan"
    rest = ", ".join(f"{part} {share:.0%}" for part, share in limits.items() if part != first)
    less = f"{limits[first]:.0%} less time if it were twice as fast ({found['limits_method']})"
    return f"{first}: {less}; {rest}"


def margin_line(found: Mapping[str, Any]) -> str:
    if not found["runner_up"]:
        return "none: the only plan timed"
    doubt = ", too close to tell" * bool(found["too_close"])
    return f"{max(0.0, found['margin']):.1%} ahead of {found['runner_up']}{doubt}"


def memory_line(found: Mapping[str, Any]) -> str:
    needs, has = found["peak_bytes"], found["hbm_bytes"]
    words = f"{nbytes(needs)} of {nbytes(has)} per device, {needs / has:.0%}" if has else f"{nbytes(needs)} per device"
    if not found["memory"]:
        return words
    total, largest = sum(found["memory"].values()), sorted(found["memory"].items(), key=lambda part: -part[1])
    return f"{words}; " + ", ".join(f"{name} {each / total:.0%}" for name, each in largest)


def parts_line(found: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{name.replace('_', ' ')} {seconds / found['median_s']:.0%}" for name, seconds in found["step_parts"].items()
    )


def panel_rows(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(label, text) of each row of a card."""
    told = [
        ("plan", found["plan"] + flags_text(found["flags"])),
        ("time", f"{time_line(found)}, {rate(found['tokens_per_s'], 'tokens/s')}"),
        ("gain", gain_line(found)),
        ("bound by", limits_text(found)),
    ]
    told += [("parts", parts_line(found))] if found["step_parts"] else []
    told += [("memory", memory_line(found))] if found["peak_bytes"] else []
    refused = sum(len(group["plans"]) for group in found["refused"])
    told += [("margin", margin_line(found)), ("crossover", crossover_phrase(found) or NOTHING)]
    told += [("left out", f"{plural(refused, 'plan')} without a time")] if refused else []
    return [
        *told,
        ("confidence", f"{found['confidence']['grade']}. {found['confidence']['sentence']}"),
    ]


def other_workload_rows(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    """One line for each other workload of the run."""
    others = found["others"]
    told = []
    for each in others[:MAX_OTHER_WORKLOADS]:
        speed = f", {times(each['gain']['value'])}" if each["gain"] else ""
        told.append(("also", f"{other_workload_label(each, found)}: {each['names']}, {time_line(each)}{speed}"))
    left = len(others) - MAX_OTHER_WORKLOADS
    return [*told, ("", f"{left} more in the report")] if left > 0 else told
