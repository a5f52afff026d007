"""Times of plans: one bar per plan, the fastest first, one chart for every workload and kind of hardware; of many plans
the fastest. A plan that was measured and simulated has one row."""

from collections.abc import Sequence, Set
from typing import Any

from stripectl.analysis.answer import ties
from stripectl.analysis.ranking import contenders, rankings, strength
from stripectl.core.plan import Plan
from stripectl.reporters.html.bar_chart import Bars, time_bar
from stripectl.reporters.html.charts import Chart, ChartTable, Rule, Section, chart_table, grouped_by, section
from stripectl.results.case import flags_text
from stripectl.results.labels import plan_label, workload_label
from stripectl.results.measurement import Measurement
from stripectl.results.measurement_set import MeasurementSet, indexed
from stripectl.util.units import NOTHING, SECONDS, duration, unit_of

TITLE = "Which plan is fastest?"
MAX_BARS = 12
INTRO = (
    "A full bar was measured, a pale bar is predicted; ◇ on a bar is the simulation of the same plan. Plans of the "
    "strongest method come first."
)
LEFT_OUT = "The fastest {} are drawn; the table of measurements has {} more."
ABSENT = "No plan has a time; the table of measurements gives the reasons."
COLUMNS = ("plan", "target", "method", "time", "95 % interval")
WithTwin = tuple[Measurement, Measurement | None]  # a measurement, and the simulation of the same plan


def of_run(shown: Sequence[Measurement]) -> Section:
    groups: dict[Any, list[Measurement]] = {}
    for m in contenders(shown):
        groups.setdefault((m.workload, m.target.hardware), []).append(m)
    tied = {m.key for ranking in rankings(shown) for m in ties(ranking)}
    charts = [time_bars(TITLE, members, MAX_BARS, tied) for members in groups.values()]
    return section("time", "Plans", TITLE, INTRO, grouped_by(charts), ABSENT)


def time_bars(title: str, members: Sequence[Measurement], most: int, tied: Set[tuple[str, ...]] = frozenset()) -> Chart:
    """A chart of the fastest members, which share a workload; plans of the strongest method come first. `tied` has
    the `id` of every plan that may be as fast as the best."""
    several = [m for m in members if m.devices > 1]
    alone, rows = [m for m in members if several and m.devices == 1], _rows(several or members)
    shown, left_out = rows[:most], len(rows[most:])
    best, answers = shown[0][0], tied if shown[0][0].key in tied else set[tuple[str, ...]]()
    return Chart(
        title,
        f"{best.workload.passes} on {best.target.hardware}",
        [m.method for m, _ in shown],
        f"Times of plans. The best of the strongest method: {best.plan}, {best.method}, {duration(best.median_s)}.",
        plan_table(shown),
        plan_bars(shown, {best.key, *answers}),
        " ".join([*map(_alone, alone), *([LEFT_OUT.format(len(shown), left_out)] if left_out else [])]),
        group=workload_label(best.workload),
        seq_len=best.workload.seq_len,
    )


def _rows(members: Sequence[Measurement]) -> list[WithTwin]:
    """Plans, the strongest method first, without simulations that share the row of another measurement."""
    run = indexed(members)
    twins = {m.key: simulated_twin(run, m) for m in members}
    drawn_beside = {twin.key for twin in twins.values() if twin}
    rows = [(m, twins[m.key]) for m in members if m.key not in drawn_beside]
    return sorted(rows, key=lambda row: (strength(row[0].method), row[0].median_s or 0.0))


def plan_bars(
    rows: Sequence[WithTwin], answers: Set[tuple[str, ...]], tall: int = 0, bound: Rule | None = None
) -> Bars:
    """Bars of plans in a fitting unit, with the keys of the plans that are the answer, and a bound in seconds."""
    unit, size = unit_of(max(m.median_s or 0.0 for m, _ in rows), SECONDS)
    names = short_labels([m for m, _ in rows])
    bars = [
        time_bar(
            at,
            m,
            size,
            names[m.key],
            best=m.key in answers,
            predicted=(twin.median_s or 0.0) / size if twin else None,
        )
        for at, (m, twin) in enumerate(rows)
    ]
    return Bars(bars, f"time ({unit})", [bound._replace(value=bound.value / size)] if bound else [], tall)


def plan_table(rows: Sequence[WithTwin]) -> ChartTable:
    listed = [m for row in rows for m in row if m]
    return chart_table(COLUMNS, map(_cells, listed), ("plan", "target", "method", "95 % interval"))


def _cells(m: Measurement) -> tuple[str, ...]:
    return plan_label(m), str(m.target), m.method, duration(m.median_s), interval_text(m)


def simulated_twin(members: MeasurementSet, m: Measurement) -> Measurement | None:
    """The simulation of a plan that was measured or compiled; None where the run has none."""
    return members.simulated.get(m.identity) if m.method != "simulated" else None


def short_labels(members: Sequence[Measurement]) -> dict[tuple[str, ...], str]:
    """Names of plans by their key, without the kernel, the mesh and the tile where all plans share them."""
    parts = {m.key: (m.plan.kernel, mesh_text(m.plan), options_text(m.plan)) for m in members}
    same = [len(set(values)) == 1 for values in zip(*parts.values(), strict=True)]
    found = dict[tuple[str, ...], str]()
    for m in members:
        kernel, mesh, options = parts[m.key]
        name = f"{m.plan.scheme}/{m.plan.layout}" + f"/{kernel}" * (not same[0])
        rest = ",".join(text for text, hidden in ((mesh, same[1]), (options, same[2])) if text and not hidden)
        alone = " (one device)" * (m.devices == 1 and len(members) > 1)
        found[m.key] = name + f"@{rest}" * bool(rest) + flags_text(m.flags) + alone
    if len(set(found.values())) < len({m.printed_plan for m in members}):
        return {m.key: plan_label(m) for m in members}
    return found


def mesh_text(plan: Plan) -> str:
    """The axes of a plan, as it is printed."""
    return ",".join(f"{axis}={size}" for axis, size in plan.axes.items())


def options_text(plan: Plan) -> str:
    """The tile and the options of a plan, as it is printed."""
    parts = str(plan).partition("@")[2].split(",")
    return ",".join(part for part in parts if part and part.partition("=")[0] not in plan.axes)


def _alone(m: Measurement) -> str:
    """A sentence about one device, whose bar would leave no room for the others."""
    return f"One device takes {duration(m.median_s)} ({m.method})."


def interval_text(m: Measurement) -> str:
    return f"{duration(m.ci95_s[0])} to {duration(m.ci95_s[1])}" if m.ci95_s else NOTHING
