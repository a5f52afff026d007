"""Everything that the report of a run shows, as plain data in the order of the page."""

from collections.abc import Sequence
from typing import Any

from stripectl.analysis.note import lines_of_note, note_lines
from stripectl.reporters.facts import cost_source_facts, environment_rows, warnings_of
from stripectl.reporters.history_text import run_minute
from stripectl.reporters.html import (
    accuracy,
    by_length,
    first_screen,
    history,
    load_balance,
    measurements,
    memory,
    mesh,
    profiles,
    published_accuracy,
    recommendation,
    roofline,
    run_archive,
    speedup,
    tiles,
    times,
    workloads,
)
from stripectl.reporters.html.charts import ChartTable, Section, chart_table
from stripectl.reporters.html.glossary_links import GlossaryLinks
from stripectl.results.compiled_program import CompiledProgram
from stripectl.results.environment import VERSION
from stripectl.results.findings import Check
from stripectl.results.labels import plan_label
from stripectl.results.measurement import Measurement
from stripectl.results.measurement_set import refusals_and_failures
from stripectl.results.run import Run
from stripectl.util.units import duration, nbytes, plural

# In the order of the page.
SECTIONS = (speedup, by_length, times, load_balance, tiles, memory, mesh, roofline, accuracy)
TRANSFERS = ("plan", "pass", "transfer", "sent each time", "times", "scheduled", "beside", "changed by the compiler")
CHECKS = ("plan", "pass", "error", "allowed", "against")
MAX_COST_SOURCES = 24  # calibrations
MAX_DEVICES = 3  # kinds of devices whose predictions are compared with published measurements
MAX_FAILURES = 4  # reasons on the first screen
MAX_LISTED_ROWS = 200  # rows of the compiler's facts, and of checks


def page_context(run: Run, past: Sequence[Run] | None = None) -> dict[str, Any]:
    """The content of the page, as plain data in the order of the page."""
    shown, found = run.results, run.recommendation
    cards = recommendation.recommendation_cards(found)
    packed, left_out = run_archive.archive_of_run(run)
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
        "longest": [str(line) for line in lines_of_note("length_limit", run)],
        "said": [str(line) for line in note_lines(run)],
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
