"""Which scheme wins at which length: the picture of a contest and what it shows, as data.

A cell is the fuller the nearer the scheme is to the winner, which has an outline too; words say the same, so that no
colour is needed.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from stripectl import scoreboard
from stripectl.console import memory, plan_cell, spread
from stripectl.contest import Contest, contests
from stripectl.measurement import Measurement
from stripectl.report.figures import COLOURS, INK, svg, utf8
from stripectl.units import NOTHING
from stripectl.workload import format_length

NUMBERS = ("time", "memory", "refused")  # columns of the winners that hold numbers
CELL_WIDE, CELL_TALL = 59, 34  # pixels
FULLEST, FAINTEST = 0.6, 0.06  # of a cell that does not win: the page's ink stays legible on both
FAR = 4.0  # a ratio from which on all look alike


def groups(measurements: Sequence[Measurement]) -> list[dict[str, Any]]:
    """The contests of a run, passes of one workload and target together, with a chart and the winners of each, and
    notes; those that hold for one pass alone name it."""
    titles: dict[str, list[Contest]] = {}
    for contest in contests(measurements):
        titles.setdefault(scoreboard.title(contest), []).append(contest)
    return [
        {"title": title, "parts": list(map(_part, those)), "notes": _notes(those)} for title, those in titles.items()
    ]


def _notes(those: Sequence[Contest]) -> list[str]:
    said: dict[str, list[str]] = {}
    for contest in those:
        for note in scoreboard.notes(contest):
            said.setdefault(note, []).append(contest.workload.passes)
    return [note if len(passes) == len(those) else f"{', '.join(passes)}: {note}" for note, passes in said.items()]


def _part(contest: Contest) -> dict[str, Any]:
    cells = [_cell(contest, at, name) for at in range(len(contest.lengths)) for name in contest.schemes]
    winners = scoreboard.winner_rows(contest)
    return {
        "pass": contest.workload.passes,
        "answer": scoreboard.answer(contest),
        "schemes": list(contest.schemes),
        "lengths": [format_length(each.seq_len) for each in contest.lengths],
        "cells": cells,
        "winners": {"columns": list(winners[0]), "numbers": NUMBERS, "rows": winners},
    }


def _cell(contest: Contest, at: int, scheme: str) -> dict[str, Any]:
    """What came of a scheme at the length that comes `at`-th."""
    length = contest.lengths[at]
    cell, words = length.cells.get(scheme), scoreboard.cell_words(length, scheme)
    known: dict[str, Any] = {"plan": NOTHING, "method": None, "memory": NOTHING, "reason": "", "ratio": None}
    if cell and cell.best:
        best = cell.best
        known |= {"plan": plan_cell(best), "method": utf8(best.method), "memory": memory(best), "ratio": cell.ratio}
    elif cell:
        known["reason"] = scoreboard.reason_of(cell.refused)
    wins = scheme == length.winner
    return known | {
        "tokens": format_length(length.seq_len),
        "scheme": scheme,
        "standing": words[0],
        "time": spread(cell.best) if cell and cell.best else NOTHING,
        "below": " ".join(words[1:]).strip(),
        "wins": wins,
        "fullness": 1.0 if wins else _fullness(known["ratio"]),
    }


def _fullness(ratio: float | None) -> float:
    """How much colour a cell has: by the logarithm, since twice is as far from once as from four times."""
    if ratio is None:
        return 0.0
    near = 1 - math.log(min(max(ratio, 1.0), FAR)) / math.log(FAR)
    return FAINTEST + (FULLEST - FAINTEST) * near


def contest_chart(chart: Mapping[str, Any]) -> str:
    """SVG: lengths across, schemes down; in a cell how the scheme stands, and its time with the method's mark."""
    base = alt.Chart(alt.Data(values=chart["cells"])).encode(
        x=alt.X("tokens:N", title="tokens", sort=chart["lengths"], axis=alt.Axis(orient="top", labelAngle=0)),
        y=alt.Y("scheme:N", title=None, sort=chart["schemes"], axis=alt.Axis(labelLimit=0)),
    )
    look: dict[str, Any] = {"fill": COLOURS[0], "stroke": INK, "cornerRadius": 2}
    squares = base.mark_rect(**look).encode(
        fillOpacity=alt.FillOpacity("fullness:Q", scale=None),
        strokeWidth=alt.condition("datum.wins", alt.value(2), alt.value(0.5)),
        strokeOpacity=alt.condition("datum.wins", alt.value(1), alt.value(0.3)),
    )
    size = {"width": alt.Step(CELL_WIDE), "height": alt.Step(CELL_TALL)}
    return svg(
        alt.layer(
            squares, *_words(base, "datum.wins", "white", "bold"), *_words(base, "!datum.wins", INK, "normal")
        ).properties(**size)
    )


def _words(base: Any, which: str, ink: str, weight: str) -> list[Any]:
    """Both lines of the cells that are meant; one line alone stands in the middle."""
    lines = (("standing", -6, 11, "datum.below"), ("below", 8, 10, "datum.below"), ("standing", 1, 11, "!datum.below"))
    return [
        base.transform_filter(f"{which} && {when}")
        .mark_text(dy=down, fontSize=size, color=ink, fontWeight=weight)
        .encode(text=f"{field}:N")
        for field, down, size, when in lines
    ]
