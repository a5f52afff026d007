"""A run as one HTML file: run -> plain dict -> template.

`context` says everything the page shows, as data; the template lays it out and asks `figures` for the drawings.
"""

import base64
import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup, escape

from stripectl import BadInput, __version__, console, notes, scoreboard, usage
from stripectl.files import data_folder, write_atomically
from stripectl.measurement import Measurement, attention_bound, simulation_error, with_speedups
from stripectl.plan import parse_plan
from stripectl.recommend import recommend
from stripectl.report import figures, lengths, recommendation, sources, timeline, traces
from stripectl.run import Run
from stripectl.units import NOTHING, in_unit, nbytes, rate, times

WORDS = {
    "whole_s": "a whole tile",
    "boundary_s": "a boundary tile",
    "dead_s": "a dead tile",
    "call_s": "a call of the kernel",
    "row_s": "a row of tiles",
    "bytes_per_s_one_way": "rate, one way",
    "held_out": "held-out block",
    "measured_s": "measured",
    "blocks": "blocks timed (rows, scores)",
    "left_out": "not in the model",
    "git": "commit",
    "clock_hz": "clock",
    "exposed": "share of transfers beside nothing (pass, collective, bytes an element)",
    "slower_hops": "hops that cross more than a link",
}
COLUMNS = (
    *("time", "samples", "speed-up", "bound", "layer bound", "tiles", "useful", "sent", "hidden", "memory", "rate"),
    "MFU",
    "simulation is off by",
)


def write_report(run: Run, path: Path) -> None:
    """Write the report of a run.

    Raises:
        BadInput: the folder cannot be written.
    """
    write_atomically(path, render(run))


def render(run: Run) -> str:
    """The page. It loads nothing and runs nothing; text that UTF-8 cannot hold is replaced."""
    return figures.utf8(_templates().get_template("report.html").render(context(run)))


@functools.cache
def _templates() -> jinja2.Environment:
    loader = jinja2.FileSystemLoader(data_folder("templates"))
    made = jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    made.filters["breakable"] = lambda plan: Markup("<wbr>").join(map(escape, re.split(r"(?<=[@,])", plan)))
    made.filters["heat_map"] = lambda chart, most: Markup(figures.heat_map(chart, most))
    for draw in (figures.time_chart, timeline.step_chart, timeline.hop_chart, lengths.contest_chart):
        made.filters[draw.__name__] = lambda chart, draw=draw: Markup(draw(chart))
    return made


def context(run: Run) -> dict[str, Any]:
    """Everything the page says, as plain data in the order of the page."""
    shown = with_speedups(map(readable, run.measurements))
    works, charts = figures.works(shown), figures.times(shown)
    cards = recommendation.cards(found := recommend(replace(run, measurements=shown)))
    surroundings = dict(run.environment) if isinstance(run.environment, Mapping) else {"environment": run.environment}
    warnings = surroundings.pop("warnings", None) or []
    text, left_out = traces.carried(replace(run, measurements=shown, recommendation=found).to_json())
    return {
        "id": run.id,
        "created": run.created,
        "command": run.command,
        "stripectl": __version__,
        "marks": console.MARKS,
        "recommended": cards[:1],
        "other_cards": grouped(cards[1:]),
        "simulation": recommendation.simulation(shown),
        "contests": lengths.groups(shown),
        "contest_question": scoreboard.QUESTION,
        "tables": tables(shown),
        "works": works[: figures.MOST_WORKS],
        "works_left_out": len(works[figures.MOST_WORKS :]),
        "times": grouped(charts),
        "warnings": warnings if isinstance(warnings, list) else [warnings],
        "environment": facts(surroundings),
        "checks": checks(shown),
        "calibrations": calibrations(shown),
        "traces": traces.traces(shown),
        "colours": timeline.COLOURS,
        "compiled": [row for m in shown for row in collectives(m)],
        "published": notes.published_rows(shown),
        "published_said": notes.published_said(shown),
        "longest": [str(line) for line in notes.longest(shown)],
        "said": [str(line) for line in (*notes.packing(shown), *notes.pass_rules(shown), *notes.exchanges(shown))],
        "reproduce": [{"command": usage.command_line(m)} for m in shown if m.status == "ok"],
        "run_json": base64.b64encode(text.encode()).decode(),
        "run_json_left_out": left_out,
    }


def readable(m: Measurement) -> Measurement:
    """The measurement, or, where its plan means nothing to this stripectl, one without a time that says so."""
    try:
        parse_plan(m.plan)
    except (BadInput, ValueError) as error:
        unread = f"this stripectl cannot read the plan: {error}"
        return (
            replace(m, status="failed", reason=unread, median_s=None) if m.status == "ok" else replace(m, median_s=None)
        )
    return m


def grouped(parts: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Parts of the page that bear the same title, together, in the order in which titles first come."""
    titles: dict[str, list[Mapping[str, Any]]] = {}
    for part in parts:
        titles.setdefault(part["title"], []).append(part)
    return [{"title": title, "parts": members} for title, members in titles.items()]


def tables(shown: Sequence[Measurement]) -> list[dict[str, Any]]:
    """A table a workload, both passes in one. A column in which nothing is known is left out."""
    groups: dict[str, list[Measurement]] = {}
    for m in shown:
        groups.setdefault(console.describe(m.workload), []).append(m)
    return [_table(title, members, shown) for title, members in groups.items()]


def _table(title: str, members: Sequence[Measurement], shown: Sequence[Measurement]) -> dict[str, Any]:
    told = console.refusals(members)
    members = told.others(members)
    numbers = [cells(m, shown) for m in members]
    known = {column for row in numbers for column, text in row.items() if text != NOTHING}
    columns = [column for column in COLUMNS if column == "time" or column in known]
    rows = [
        {
            "plan": console.plan_cell(m) if m.status == "ok" else m.plan,
            "pass": m.workload.passes,
            "target": m.target,
            "method": m.method,
            "status": m.status,
            "reason": m.reason or "no reason was given",
            "cells": [row[column] for column in columns],
        }
        for m, row in zip(members, numbers, strict=True)
    ]
    rows += [
        {
            "plan": console.in_common(those),
            "pass": those[0].workload.passes,
            "target": those[0].target,
            "method": those[0].method,
            "status": "refused",
            "reason": those[0].reason,
            "cells": [],
        }
        for those in told.groups
    ]
    return {"title": title, "columns": columns, "rows": rows}


def cells(m: Measurement, shown: Sequence[Measurement]) -> dict[str, str]:
    """The numbers of a measurement, as a table prints them."""
    known = dict.fromkeys(COLUMNS, NOTHING)
    if m.status != "ok":
        return known
    known |= {
        "time": console.spread(m),
        "memory": console.memory(m),
        "hidden": console.hidden(m),
        "rate": rate(m.flops_per_s_per_device, "FLOP/s"),
    }
    if m.samples_s:
        known["samples"] = str(len(m.samples_s))
    if m.tiles:
        known |= {"tiles": f"{m.tiles['computed']:,}", "useful": f"{m.tiles['efficiency']:.1%}"}
    if m.devices > 1:
        bounds, sent = m.bound or {}, sum((m.bytes or {}).values())
        known |= {"speed-up": console.speedup(m), "sent": nbytes(sent)}
        known |= {"bound": times(attention_bound(m)), "layer bound": times(bounds.get("layer"))}
    if m.mfu is not None:
        known["MFU"] = f"{m.mfu:.0%}"
    if (error := simulation_error(m, shown)) is not None:
        known["simulation is off by"] = f"{error:+.0%}"
    return known


def checks(shown: Sequence[Measurement]) -> list[dict[str, str]]:
    """The numeric check of every plan that has one."""
    return [
        {
            "plan": m.plan,
            "pass": m.workload.passes,
            "error": f"{m.check['max_rel_error']:.1e}",
            "tolerance": f"{m.check['tolerance']:.0e}",
            "reference": m.check["reference"],
        }
        for m in shown
        if m.check
    ]


def collectives(m: Measurement) -> list[dict[str, Any]]:
    """What a compiled plan sends and how it is scheduled, a row for each kind of transfer; what the compiler changed
    and copied stands in the first."""
    told = m.program or {}
    copied = told.get("copies") or {}
    notes = [
        f"{each['name']} ({'-' if each['bytes'] < 0 else '+'}{nbytes(abs(each['bytes']))})"
        for each in told.get("rewrites") or ()
    ]
    if copied.get("per_round"):
        notes.append(f"copies a round: {copied['per_round']} ({nbytes(copied['bytes_per_round'])})")
    rows = [
        {
            "plan": console.plan_cell(m),
            "pass": each["pass"],
            "what": f"{each['opcode']} {each['dtype']}",
            "sent": nbytes(each["sent_bytes"]),
            "times": str(each["times"]),
            "how": "asynchronous" if each["asynchronous"] else "synchronous",
            "beside": "tiles" if each["beside_tiles"] else "nothing",
            "notes": "",
        }
        for each in told.get("collectives") or ()
    ]
    return [row | {"notes": "; ".join(notes) if row is rows[0] else ""} for row in rows]


def calibrations(shown: Sequence[Measurement]) -> list[dict[str, Any]]:
    """Where simulated times come from, each calibration once, with how many measurements stand on it."""
    return [
        {"source": source, "text": text, "facts": facts(detail), "used_by": count}
        for source, text, detail, count in sources.grounds(shown)
    ]


def facts(content: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Nested data as small tables of (name, value): one for the plain values, one a mapping in it."""
    plain = {name: value for name, value in content.items() if not isinstance(value, Mapping)}
    parts = [("", plain), *((name, value) for name, value in content.items() if isinstance(value, Mapping))]
    return [{"title": words(name), "rows": rows} for name, part in parts if (rows := _rows(part))]


def _rows(content: Mapping[str, Any], under: str = "") -> list[tuple[str, str]]:
    rows = []
    for name, value in content.items():
        label = f"{under}{words(name)}"
        rows += _rows(value, f"{label}: ") if isinstance(value, Mapping) else [(label, quantity(name, value))]
    return rows


def words(name: str) -> str:
    """A field's name for a reader: the unit goes, since the value shows it."""
    return WORDS.get(name) or name.removesuffix("_s").replace("_", " ")


def quantity(name: str, value: Any) -> str:
    """A field's value in the unit that its name ends in."""
    if isinstance(value, list | tuple):
        return ", ".join(quantity(name, each) for each in value) or "none"
    if value is None or isinstance(value, bool | str):
        return {None: NOTHING, True: "yes", False: "no"}.get(value, str(value))
    if isinstance(value, Mapping):
        return ", ".join(f"{words(key)} {quantity(key, each)}" for key, each in value.items())
    return in_unit(name, value)
