"""A history on a terminal: one row per series, or for a few series one row per run."""

from collections.abc import Iterator, Mapping, Sequence

from rich.table import Table
from rich.text import Text

from stripectl.analysis.series import Series
from stripectl.reporters import history_text
from stripectl.reporters.history_text import POINT_COLUMNS
from stripectl.reporters.terminal.tables import fitted_table
from stripectl.results.history import moment
from stripectl.results.labels import METHOD_WORDS, workload_label
from stripectl.util.files import printable

BARS = "▁▂▃▄▅▆▇█"
BREAK = "│"  # between two levels
MAX_TREND_CHARACTERS = 32  # characters of a drawn series
MAX_ROWS, MIN_ROWS = 40, 5  # series of all tables, and of a table
DETAILED = 4  # series with one row per run, where a plan was asked for
MIN_COLUMNS = 5  # columns that are shown on any screen
COLUMNS = ("plan", "pass", "method", "latest", "last change", "runs", "trend", "place")
TEXT_COLUMNS = ("plan", "pass", "method", "last change", "trend", "place", "date", "commit", "what is new", "run")


def history_parts(every: Sequence[Series], width: int, narrowed: bool) -> Iterator[Table | Text]:
    """The series; in detail where there is one, or where a plan was asked for and there are few."""
    if len(every) == 1 or (narrowed and len(every) <= DETAILED):
        for series in every:
            yield from _detail(series, width)
        return
    groups: dict[tuple[str, str], list[Series]] = {}
    for series in every:
        m = series.newest.measurement
        groups.setdefault((workload_label(m.workload), m.target.hardware), []).append(series)
    for members in groups.values():
        yield Text(history_text.series_title(members[0]), style="bold")
        yield from _table(members, width, max(MIN_ROWS, MAX_ROWS // len(groups)))
        yield Text("")


def _table(members: Sequence[Series], width: int, most: int) -> Iterator[Table | Text]:
    """One row per series; of more than `most`, the series that changed last."""
    shown = members if len(members) <= most else sorted(members, key=_last_change_s, reverse=True)[:most]
    places = {series.place for series in shown if series.place}
    columns = COLUMNS if len(places) > 1 else COLUMNS[:-1]
    yield from _fitted(columns, [_row(series) for series in shown], width)
    if len(places) == 1:
        yield Text(f"  {printable(*places)}", style="dim")
    if left := len(members) - len(shown):
        changed = sum(bool(series.changes) for series in members) - sum(bool(series.changes) for series in shown)
        yield Text(
            f"  {left} more series, {changed} with a change. To see them, narrow with --plan, --pass or --method."
        )


def _last_change_s(series: Series) -> float:
    """The time of the last change; 0 for a series without a change."""
    return moment(series.points[series.changes[-1].at].run).timestamp() if series.changes else 0.0


def _fitted(columns: Sequence[str], rows: Sequence[Mapping[str, str]], width: int) -> Iterator[Table | Text]:
    made = fitted_table(columns, rows, width, MIN_COLUMNS, TEXT_COLUMNS)
    yield made
    if left_out := columns[len(made.columns) :]:
        yield Text(f"  too narrow for: {', '.join(left_out)}", style="dim")


def _row(series: Series) -> dict[str, str]:
    m = series.newest.measurement
    return {
        "plan": history_text.series_plan(series),
        "pass": m.workload.passes,
        "method": METHOD_WORDS.get(m.method, m.method),
        "latest": history_text.point_value(series.newest, series),
        "last change": history_text.last_change(series),
        "runs": str(len(series.points)),
        "trend": trend(series),
        "place": printable(series.place),
    }


def _detail(series: Series, width: int) -> Iterator[Table | Text]:
    m = series.newest.measurement
    method = METHOD_WORDS.get(m.method, m.method)
    yield Text(
        f"{history_text.series_plan(series)} {m.workload.passes}, {history_text.series_title(series)}, {method}",
        style="bold",
    )
    if series.place:
        yield Text(f"  {printable(series.place)}", style="dim")
    yield from _fitted(
        POINT_COLUMNS, [dict(zip(POINT_COLUMNS, row, strict=True)) for row in history_text.series_rows(series)], width
    )
    yield Text(f"  {series.metric.name}  {trend(series)}")
    for change in series.changes:
        yield Text(f"  {history_text.change_since(change, series)}.")
    if not series.changes:
        yield Text(f"  change: {history_text.last_change(series)}.")
    yield Text("")


def trend(series: Series) -> str:
    """The series as bars from its lowest to its highest value, for a long series the newest, with breaks at changes."""
    low, high = series.span
    steps = (len(BARS) - 1) / (high - low or 1.0)
    drawn = ["".join(BARS[round((value - low) * steps)] for value in level.values) for level in series.levels]
    return BREAK.join(drawn)[-MAX_TREND_CHARACTERS:].lstrip(BREAK)
