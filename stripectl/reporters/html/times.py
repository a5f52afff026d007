"""Which plan is fastest: a bar a plan, a chart for every workload and kind of hardware; of many plans the fastest."""

from collections.abc import Sequence
from typing import Any

from stripectl.analysis.ranking import contenders, strength
from stripectl.reporters.html.bar_chart import time_bar
from stripectl.reporters.html.charts import chart, chart_table, grouped_by, section
from stripectl.results.labels import plan_label, workload_label
from stripectl.results.measurement import Measurement
from stripectl.util.units import NOTHING, SECONDS, duration, unit_of

TITLE = "Which plan is fastest?"
MAX_BARS = 12
INTRO = (
    "A full bar was measured; an empty, dashed one is compiled or simulated. The line on a measured bar is the 95 % "
    "interval of its median. Plans that a search timed roughly, and those that a stronger method refuses, have no bar."
)
LEFT_OUT = "The fastest of the strongest method, {}; {} more stand in the table of measurements."
ABSENT = "No plan gave a time; the table of measurements says why."
COLUMNS = ("plan", "target", "method", "time", "95 % interval")


def of_run(shown: Sequence[Measurement]) -> dict[str, Any]:
    groups: dict[Any, list[Measurement]] = {}
    for m in contenders(shown):
        groups.setdefault((m.workload, m.target.hardware), []).append(m)
    charts = [time_bars(TITLE, members, MAX_BARS) for members in groups.values()]
    return section("time", "Time", TITLE, INTRO, grouped_by(charts), ABSENT)


def time_bars(title: str, members: Sequence[Measurement], most: int) -> dict[str, Any]:
    """A chart of the fastest members, those of the strongest method first, which have a workload in common, in the
    order in which their plans first come."""
    several = [m for m in members if m.devices > 1]
    alone, members = [m for m in members if several and m.devices == 1], several or members
    fastest = sorted(members, key=lambda m: (strength(m.method), m.median_s or 0.0))[:most]
    order = {plan: at for at, plan in reversed(list(enumerate(m.plan for m in members)))}
    shown = sorted(fastest, key=lambda m: (order[m.plan], m.method))
    unit, size = unit_of(max(m.median_s or 0.0 for m in shown), SECONDS)
    best, left_out = fastest[0], len(members) - len(shown)
    rows = [(plan_label(m), str(m.target), m.method, duration(m.median_s), interval_text(m)) for m in shown]
    return chart(
        "bars",
        title,
        f"{best.workload.passes} on {best.target.hardware}",
        [m.method for m in shown],
        f"Times of plans. The best of the strongest method: {best.plan}, {best.method}, {duration(best.median_s)}.",
        chart_table(COLUMNS, rows, ("plan", "target", "method", "95 % interval")),
        " ".join([*map(_alone, alone), *([LEFT_OUT.format(len(shown), left_out)] if left_out else [])]),
        group=workload_label(best.workload),
        seq_len=best.workload.seq_len,
        bars=[time_bar(at, m, size) for at, m in enumerate(shown)],
        axis=f"time ({unit})",
        rule=None,
    )


def _alone(m: Measurement) -> str:
    """One device, whose bar would leave the others no room."""
    return f"One device, {m.method}: {duration(m.median_s)}."


def interval_text(m: Measurement) -> str:
    return f"{duration(m.ci95_s[0])} to {duration(m.ci95_s[1])}" if m.ci95_s else NOTHING
