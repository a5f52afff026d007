"""The best scheme at each length: a map of all comparisons in a run, the winners, and notes."""

from collections.abc import Sequence

from stripectl.analysis.by_length import QUESTION, LengthResult, SchemesByLength, schemes_by_length
from stripectl.analysis.by_length_notes import by_length_notes, why_no_time
from stripectl.core.lengths import format_length
from stripectl.reporters.by_length_rows import cell_words, winner_rows
from stripectl.reporters.cells import memory_cell, spread_cell
from stripectl.reporters.html.charts import Chart, ChartGroup, Section, chart_table, section
from stripectl.reporters.html.heatmap import Axis, Heatmap, HeatmapCell, fullness
from stripectl.reporters.html.scheme_map import scheme_map
from stripectl.reporters.html.vega_lite import tip
from stripectl.results.labels import plan_label
from stripectl.results.measurement import Measurement
from stripectl.util.files import utf8
from stripectl.util.units import NOTHING

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
    lengths = [format_length(each.seq_len) for each in contest.lengths]
    found = [_cell(length, name) for length in contest.lengths for name in contest.schemes]
    winners = winner_rows(contest)
    winning = [list(row.values()) for row in winners]
    words = [name for name in winners[0] if name not in ("time", "memory", "refused")]
    return Chart(
        QUESTION,
        contest.workload.passes,
        [row[4] for _, row in found if row[4] != NOTHING],
        f"{QUESTION} {contest.answer}",
        chart_table(COLUMNS, [row for _, row in found], ("tokens", "scheme", "method", COLUMNS[-1])),
        Heatmap(
            [cell for cell, _ in found],
            Axis("sequence length (tokens)", lengths, "top"),
            Axis(None, contest.schemes, "left"),
        ),
        contest.answer,
        more=[{"title": "Winners", "table": chart_table(list(winners[0]), winning, words), "open": False}],
    )


def _cell(length: LengthResult, scheme: str) -> tuple[HeatmapCell, tuple[str, ...]]:
    """The cell of a scheme at a length, and its row of the table."""
    tokens, found, words = format_length(length.seq_len), length.cells.get(scheme), cell_words(length, scheme)
    best, wins = found.best if found else None, scheme == length.winner
    time, plan = (spread_cell(best), plan_label(best)) if best else (NOTHING, NOTHING)
    ratio = found.ratio if found and best else None
    cell = HeatmapCell(
        across=tokens,
        down=scheme,
        first=words[0],
        second=" ".join(words[1:]).strip(),
        wins=wins,
        fullness=fullness(ratio, wins, SATURATED_RATIO),
        tip=tip(f"{scheme} at {tokens} tokens: {time}, {plan}"),
    )
    method, memory = (utf8(best.method), memory_cell(best)) if best else (NOTHING, NOTHING)
    why = why_no_time(found.refused) if found and not best else ""
    return cell, (tokens, scheme, words[0], time, method, memory, why or plan)
