"""A run as one HTML file: run -> plain dict -> template.

`page_context` has everything that the page shows, as data; the template arranges it and asks `DRAWINGS` for the charts.
Each chart has its own module, which chooses its measurements.
"""

import base64
import functools
import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import jinja2
from markupsafe import Markup, escape

from stripectl.analysis.recommendation import recommend
from stripectl.reporters import markdown_report
from stripectl.reporters.history_text import run_minute
from stripectl.reporters.html import (
    accuracy,
    bar_chart,
    by_length,
    first_screen,
    heatmap,
    history,
    line_chart,
    load_balance,
    measurements,
    memory,
    mesh,
    profiles,
    published_accuracy,
    recommendation,
    roofline,
    run_archive,
    scheme_map,
    side_by_side,
    speedup,
    stacked_bars,
    tiles,
    timeline,
    times,
    workloads,
)
from stripectl.reporters.html.charts import (
    NARROW,
    PANEL,
    SMALL_PANEL,
    WIDE,
    Chart,
    ChartTable,
    PageContext,
    Section,
    chart_table,
)
from stripectl.reporters.html.fact_tables import cost_source_facts, environment_rows, warnings_of
from stripectl.reporters.html.glossary_links import GlossaryLinks
from stripectl.reporters.terminal import footnotes, tables
from stripectl.results.compiled_program import CompiledProgram
from stripectl.results.environment import VERSION
from stripectl.results.findings import Check
from stripectl.results.labels import METHOD_WORDS, plan_label
from stripectl.results.measurement import Measurement
from stripectl.results.measurement_set import refusals_and_failures
from stripectl.results.run import Run
from stripectl.util.files import data_folder, utf8, write_atomically
from stripectl.util.json import JsonObject
from stripectl.util.progress import Say, quiet
from stripectl.util.units import duration, nbytes, plural

DRAWINGS = {
    "bars": bar_chart.draw,
    "curves": line_chart.draw,
    "grid": heatmap.draw,
    "hops": timeline.hop_chart,
    "links": mesh.draw,
    "ratios": published_accuracy.draw,
    "regions": scheme_map.draw,
    "roofline": roofline.draw,
    "scatter": accuracy.draw,
    "stack": stacked_bars.draw,
    "step": timeline.step_chart,
    "trend": history.draw,
    "work": load_balance.draw,
}
MARKS = tables.MARKS | {"counted": "∑", "published": "★"}
# In the order of the page.
SECTIONS = (speedup, by_length, times, load_balance, tiles, memory, mesh, roofline, accuracy)
TRANSFERS = ("plan", "pass", "transfer", "sent each time", "times", "scheduled", "beside", "changed by the compiler")
CHECKS = ("plan", "pass", "error", "allowed", "against")
SMALL, BROAD = 0.86, 1.1  # of the width that a drawing was given
MAX_COST_SOURCES = 24  # calibrations
MAX_DEVICES = 3  # kinds of devices whose predictions are compared with published measurements
MAX_FAILURES = 4  # reasons on the first screen
MAX_LISTED_ROWS = 200  # rows of the compiler's facts, and of checks


def write_report(run: Run, path: Path, say: Say = quiet, past: Sequence[Run] | None = None) -> None:
    """Write the report of a run; `past` are the runs of a history up to it.

    Raises:
        BadInput: the folder cannot be written.
    """
    write_atomically(path, render(run, say, past))


def render(run: Run, say: Say = quiet, past: Sequence[Run] | None = None) -> str:
    """The page. It loads nothing and is complete without its script; text that UTF-8 cannot hold is replaced."""
    said = page_context(run, past)
    figures = figures_of(said["sections"].values())
    figures += [[each] for p in said["traces"]["profiles"] for each in (p["timeline"], p["hops"]) if each]
    figures += [[each] for each in said["published"]]
    if said["first"]:
        figures.insert(0, [said["first"]["chart"]])
    return _page("report.html", said, figures, say)


def render_several(runs: Sequence[Run], say: Say = quiet) -> str:
    """The page with runs side by side."""
    said = side_by_side.side_by_side_context([run.readable() for run in runs])
    return _page("several.html", said | {"terms": escape}, figures_of([said["part"]]), say)


def page_markdown(runs: Sequence[Run]) -> str:
    """A run, or several side by side, for a comment on a pull request."""
    read = [run.readable() for run in runs]
    if len(read) > 1:
        return markdown_report.several_runs_markdown(read)
    return markdown_report.run_markdown(read[0], recommend(read[0]))


def page_json(runs: Sequence[Run]) -> JsonObject:
    """A run with its recommendation; several runs as a list of such."""
    read = [run.readable() for run in runs]
    found = [replace(run, recommendation=recommend(run)).to_json() for run in read]
    return found[0] if len(found) == 1 else {"runs": found}


Figure = Sequence[Chart]  # the panels of a figure


def figures_of(sections: Iterable[Section]) -> list[Figure]:
    return [group["charts"] for part in sections for group in part["groups"]]


def _page(template: str, said: Mapping[str, object], figures: Sequence[Figure], say: Say) -> str:
    done, total = 0, sum(map(len, figures))
    for panels in figures:
        for chart in panels:
            say(f"drawing: {chart['title']}", done, total)
            chart["drawings"] = drawings(chart, len(panels))
            chart["span"] = len(panels) > 2 and any(
                width_of(text) > BROAD * SMALL_PANEL for _, text in chart["drawings"]
            )
            done += 1
    return utf8(_templates().get_template(template).render(said))


def drawings(chart: Chart, panels: int) -> list[tuple[str, Markup]]:
    """SVGs by the class of screens that show them: the only chart of a figure is drawn for wide and for narrow screens;
    one of several panels fits both. Two and four panels have two columns, others three."""
    draw = DRAWINGS[chart["kind"]]
    widths = (("wide", chart.get("wide", WIDE)), ("narrow", NARROW))
    if panels > 1 or chart.get("one_size"):
        widths = (("panel-size", PANEL if panels in (2, 4) else SMALL_PANEL),)
    found = ((name, draw(chart, width), width) for name, width in widths)
    return [(name + " small" * keeps_its_size(text, width), Markup(text)) for name, text, width in found if text]


def keeps_its_size(drawing: str, width: int) -> bool:
    """Whether a drawing needs much less room than it was given, so that it keeps its size."""
    return width_of(drawing) < SMALL * width


def width_of(drawing: str) -> float:
    """The pixels that a drawing needs without a scale."""
    return float(drawing.partition(' width="')[2].partition('"')[0])


@functools.cache
def _templates() -> jinja2.Environment:
    folder = data_folder("templates")
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    untyped = cast(Any, made)  # the filters and globals of Jinja have no types
    untyped.filters |= {"breakable": _breakable, "unbroken": _unbroken}
    shared: PageContext = {"marks": MARKS, "words_of": METHOD_WORDS}
    for name in ("style.css", "page.js"):
        text = (folder / name).read_text(encoding="utf-8")
        shared[name.partition(".")[0]] = {"text": Markup(text), "hash": content_hash(text)}
    untyped.globals |= shared
    return made


def _breakable(plan: str) -> str:
    """A plan that a browser may break after its marks."""
    return Markup("<wbr>").join(map(escape, re.split(r"(?<=[@,/])", plan)))


def _unbroken(text: str) -> str:
    """A text whose products, such as 2 x 4, a browser does not break."""
    return re.sub(r"(?<=\d) x (?=\d)", "\u00a0x\u00a0", text)


def content_hash(text: str) -> str:
    """The name of a style or a script in a content security policy."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def page_context(run: Run, past: Sequence[Run] | None = None) -> dict[str, Any]:
    """The content of the page, as plain data in the order of the page."""
    run = run.readable()
    shown = run.results
    found = recommend(run)
    cards = recommendation.recommendation_cards(found)
    packed, left_out = run_archive.archive_of_run(replace(run, recommendation=found))
    listed = run_archive.shown_measurements(shown)
    sections = [*(part.of_run(shown) for part in SECTIONS), history.of_run(past)]
    paired = pairs_of([each for each in sections if each["groups"]])
    traced = profiles.profile_sections(shown)
    has_traces = bool(traced["profiles"] or traced["others"]["rows"])
    return {
        "id": run.id,
        "created": run_minute(run),
        "command": run.command,
        "stripectl": VERSION,
        "first": first_screen.first_screen(found, shown) if found else None,
        "matrix": workloads.workload_matrix(found.every) if found else None,
        "cards": cards[: workloads.MAX_DETAILS],
        "cards_left_out": len(cards[workloads.MAX_DETAILS :]),
        "failures": failures(shown) if not found else [],
        "sections": {each["id"]: each | {"half": each["id"] in paired} for each in sections},
        "lacking": lacking_sections(sections, has_traces) if shown else [],
        "tables": measurements.measurement_tables(listed, shown),
        "unlisted": len(shown) - len(listed),
        "warnings": warnings_of(run),
        "environment": environment_rows(run),
        "published": published_accuracy.of_run(shown)[:MAX_DEVICES],
        "checks": chart_table(CHECKS, check_rows(shown), ("plan", "pass", "against"), most=MAX_LISTED_ROWS),
        "calibrations": (grounds := cost_source_facts(shown))[:MAX_COST_SOURCES],
        "calibrations_left_out": len(grounds[MAX_COST_SOURCES:]),
        "traces": traced,
        "terms": GlossaryLinks(traced=has_traces),
        "compiled": transfers_table(shown),
        "longest": [str(line) for line in footnotes.max_length_notes(shown)],
        "said": [str(line) for line in run_notes(run, shown)],
        "behind": measurements.measurement_details(listed, shown),
        "run_data": packed,
        "run_left_out": left_out,
    }


def lacking_sections(sections: Sequence[Section], has_traces: bool) -> list[dict[str, str]]:
    """The titles of sections that the run has no data for, and the reasons."""
    lacking = [{"title": each["title"], "why": each["absent"]} for each in sections if not each["groups"]]
    return lacking + [{"title": profiles.TITLE, "why": profiles.ABSENT}] * (not has_traces)


def pairs_of(sections: Sequence[Section]) -> set[str]:
    """The sections that share a row on a wide screen: neighbours whose figures have one panel each."""
    found, at = set[str](), 0
    while at + 1 < len(sections):
        if all(each["panels"] == 1 for each in sections[at : at + 2]):
            found |= {each["id"] for each in sections[at : at + 2]}
            at += 1
        at += 1
    return found


def failures(shown: Sequence[Measurement]) -> list[str]:
    """Why no plan of a run has a time: the number of plans that were refused or failed, by their common reason."""
    return [
        f"{plural(len(those), 'plan')} {those[0].status}: {those[0].reason or 'no reason was given'}"
        for those in refusals_and_failures(shown)[:MAX_FAILURES]
    ]


def run_notes(run: Run, shown: Sequence[Measurement]) -> Iterable[object]:
    """Lines about the run that are below its measurements."""
    yield from footnotes.search_notes(run.searches)
    yield from footnotes.packing_notes(shown)
    yield from footnotes.pass_rule_notes(shown)
    yield from footnotes.exchange_notes(shown)


def check_rows(shown: Sequence[Measurement]) -> list[list[str]]:
    """The numeric check of every plan that has one."""
    return [[str(m.plan), m.workload.passes, *_check(m.check)] for m in shown if m.check]


def _check(found: Check) -> list[str]:
    return [f"{found.max_rel_error:.1e}", f"{found.tolerance:.0e}", found.reference]


def transfers_table(shown: Sequence[Measurement]) -> ChartTable:
    """The transfers of all compiled plans."""
    rows = [row for m in shown for row in collective_rows(m)]
    return chart_table(TRANSFERS, rows, {*TRANSFERS} - {"sent each time", "times"}, most=MAX_LISTED_ROWS)


def collective_rows(m: Measurement) -> list[list[str]]:
    """The transfers of a compiled plan and their schedule, one row per kind of transfer; the first row has the
    compiler's changes and copies."""
    program = m.compiled_program or CompiledProgram()
    changes = [f"{each.name} ({'-' if each.bytes < 0 else '+'}{nbytes(abs(each.bytes))})" for each in program.rewrites]
    if (copied := program.copies) and copied.per_round:
        took = duration(copied.s_per_round)
        changes.append(f"copies per round: {copied.per_round} ({nbytes(copied.bytes_per_round)}, {took})")
    return [
        [
            plan_label(m),
            each.passes,
            f"{each.opcode} {each.dtype}",
            nbytes(each.sent_bytes),
            str(each.times),
            "asynchronous" if each.asynchronous else "synchronous",
            "tiles" if each.beside_tiles else "nothing",
            "; ".join(changes) if at == 0 else "",
        ]
        for at, each in enumerate(program.collectives)
    ]
