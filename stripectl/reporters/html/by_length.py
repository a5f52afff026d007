"""The best scheme at each length: a map of all comparisons in a run, the winners, and notes."""

from collections.abc import Sequence

from stripectl.analysis.by_length import QUESTION, SchemesByLength, schemes_by_length
from stripectl.analysis.by_length_notes import by_length_notes, why_no_time
from stripectl.core.lengths import format_length
from stripectl.reporters.by_length_rows import cell_words, winner_rows
from stripectl.reporters.cells import memory_cell, spread_cell
from stripectl.reporters.html.charts import Chart, ChartGroup, ChartRow, Section, chart, chart_table, section, tip
from stripectl.reporters.html.heatmap import fullness
from stripectl.reporters.html.scheme_map import scheme_map
from stripectl.results.labels import plan_label
from stripectl.results.measurement import Measurement
from stripectl.util.files import utf8
from stripectl.util.units import NOTHING, times

INTRO = (
    "The fastest scheme at each length as regions, and the time of every scheme divided by the fastest time. The "
    "fainter a cell, the slower its scheme. A tie is as fast as the winner as far as this run can tell."
)
ABSENT = (
    "This needs times of two schemes at two lengths. stripectl bench --seqlen 16k,64k,256k,1M --scheme all --mesh auto."
)
COLUMNS = ("tokens", "scheme", "over the winner", "time", "method", "memory", "plan, or why it has no time")
SATURATED_RATIO = 4.0  # larger ratios have the same colour


def of_run(shown: Sequence[Measurement]) -> Section:
    """The comparisons of a run, all passes of one workload and target together, with a chart and the winners of each,
    and notes; notes about a single pass name it."""
    titles: dict[str, list[SchemesByLength]] = {}
    for contest in schemes_by_length(shown):
        titles.setdefault(contest.title, []).append(contest)
    groups: list[ChartGroup] = [
        {"title": title, "charts": [scheme_map(those), *map(_chart, those)], "notes": _notes(those)}
        for title, those in titles.items()
    ]
    return section("lengths", "Schemes", QUESTION, INTRO, groups, ABSENT)


def _notes(those: Sequence[SchemesByLength]) -> list[str]:
    said: dict[str, list[str]] = {}
    for contest in those:
        for note in by_length_notes(contest):
            said.setdefault(note, []).append(contest.workload.passes)
    return [note if len(passes) == len(those) else f"{', '.join(passes)}: {note}" for note, passes in said.items()]


def _chart(contest: SchemesByLength) -> Chart:
    cells = [_cell(contest, at, name) for at in range(len(contest.lengths)) for name in contest.schemes]
    lengths = [format_length(each.seq_len) for each in contest.lengths]
    rows = [
        (
            cell["across"],
            cell["down"],
            cell["first"],
            cell["time"],
            cell["method"] or NOTHING,
            cell["memory"],
            cell["reason"] or cell["plan"],
        )
        for cell in cells
    ]
    winners = winner_rows(contest)
    winning = [list(row.values()) for row in winners]
    words = [name for name in winners[0] if name not in ("time", "memory", "refused")]
    return chart(
        "grid",
        QUESTION,
        contest.workload.passes,
        [cell["method"] for cell in cells if cell["method"]],
        f"{QUESTION} {contest.answer}",
        chart_table(COLUMNS, rows, ("tokens", "scheme", "method", COLUMNS[-1])),
        contest.answer,
        cells=cells,
        broad=True,
        across={"title": "sequence length (tokens)", "order": lengths, "side": "top"},
        down={"title": None, "order": list(contest.schemes)},
        more=[{"title": "Winners", "table": chart_table(list(winners[0]), winning, words), "open": False}],
    )


def _cell(contest: SchemesByLength, at: int, scheme: str) -> ChartRow:
    """The cell of a scheme at the length with index `at`."""
    length = contest.lengths[at]
    cell, words = length.cells.get(scheme), cell_words(length, scheme)
    known: ChartRow = {"plan": NOTHING, "method": None, "memory": NOTHING, "reason": "", "time": NOTHING}
    ratio = None
    if cell and cell.best:
        best, ratio = cell.best, cell.ratio
        known |= {
            "plan": plan_label(best),
            "method": utf8(best.method),
            "memory": memory_cell(best),
            "time": spread_cell(best),
        }
    elif cell:
        known["reason"] = why_no_time(cell.refused)
    wins = scheme == length.winner
    return known | {
        "across": format_length(length.seq_len),
        "down": scheme,
        "first": words[0],
        "second": " ".join(words[1:]).strip(),
        "ratio": times(ratio),
        "wins": wins,
        "fullness": fullness(ratio, wins, SATURATED_RATIO),
        "tip": tip(f"{scheme} at {format_length(length.seq_len)} tokens: {known['time']}, {known['plan']}"),
    }
