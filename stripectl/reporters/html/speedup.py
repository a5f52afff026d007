"""Speed-ups over the contiguous ring by length, with the bound of the layouts and published values.

Lengths come from the run; where it has only one, from the plans' simulated scaling.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from stripectl.analysis.crossover import LengthPoint, curves, without_length
from stripectl.analysis.ranking import Ranking, rankings
from stripectl.analysis.striped_attention_paper import PublishedComparison, published_comparisons
from stripectl.core.lengths import format_length
from stripectl.core.validation import why_unsupported
from stripectl.core.workload import STEP
from stripectl.errors import BadInput
from stripectl.reporters.html.charts import (
    MAX_SERIES,
    Chart,
    Rule,
    Section,
    chart_table,
    grouped_by,
    not_drawn,
    section,
)
from stripectl.reporters.html.line_chart import CurvePoint, Curves
from stripectl.reporters.html.vega_lite import tip
from stripectl.results.labels import workload_label
from stripectl.results.measurement import Measurement, attention_bound
from stripectl.runner.static_facts import bounds
from stripectl.util.files import utf8
from stripectl.util.units import NOTHING, times

TITLE = "How much faster is it, at which length?"
INTRO = (
    "Speed-ups over the plan that is named at 1. A filled mark was measured, a hollow mark is predicted; the dotted "
    "line is the bound of the layout, from the balance of its tiles; a star is a published measurement."
)
ABSENT = (
    "This needs two plans on several devices with times at several lengths. Name lengths: "
    "stripectl bench --seqlen 64k,256k,1M."
)
ABOVE_BOUND = (
    "The bound counts all tiles as equally expensive and no waiting for hops, so a plan can be a little faster."
)
VISIBLE = 0.002  # share of a bound by which a value must exceed it to be mentioned
MAX_GROUPS_AND_CHARTS = 12, 12  # groups, and charts of each
Mesh = tuple[tuple[str, int], ...]
COLUMNS = ("plan", "tokens", "method", "speed-up", "95 % interval", "bound", "published")


def of_run(shown: Sequence[Measurement]) -> Section:
    """One chart for each workload without its length; the plans with the largest gain at the longest length."""
    found, papers = rankings(shown), published_comparisons(shown)
    firsts: dict[Any, Ranking] = {}
    for ranking in found:
        firsts.setdefault(without_length(ranking), ranking)
    wanted = ((ranking, mesh) for ranking in firsts.values() for mesh in _meshes(ranking, found, papers))
    charts = [made for ranking, mesh in wanted if (made := speed_up_chart(ranking, found, papers, mesh))]
    for group in (groups := grouped_by(charts)):
        _share_axis(group["charts"])
    return section("speedup", "Speed-up", TITLE, INTRO, groups, ABSENT, MAX_GROUPS_AND_CHARTS)


def _share_axis(charts: Sequence[Chart]) -> None:
    """Give the charts of a group one vertical axis."""
    own = [(each, each.drawing) for each in charts if isinstance(each.drawing, Curves)]
    values = [value for _, drawn in own for value in drawn.values]
    for each, drawn in own:
        each.drawing = replace(drawn, domain=(min(values), max(values)))


def _meshes(ranking: Ranking, found: Sequence[Ranking], papers: Sequence[PublishedComparison]) -> list[Mesh | None]:
    """The meshes that have their own chart, where a paper has them; otherwise all plans share one chart."""
    own = ranking.best.target.hardware, ranking.workload.model
    if ranking.workload.passes != STEP or own not in {(each.hardware, each.model) for each in papers if each.published}:
        return [None]
    return list(dict.fromkeys(m.plan.mesh for each in _alike(ranking, found) for m in each.rivals))


def _beside(ranking: Ranking) -> str:
    hardware, model = ranking.best.target.hardware, ranking.workload.model
    return f"model {model} on {hardware}, compared with Brandon et al. 2023"


def _alike(ranking: Ranking, found: Sequence[Ranking]) -> list[Ranking]:
    """The rankings that differ only in their length."""
    return [each for each in found if without_length(each) == without_length(ranking)]


class SpeedUpPoint(NamedTuple):
    """The speed-up of a plan at a length, with its interval, the bound of its layout and a published value."""

    tokens: int
    name: str
    method: str
    value: float
    low: float | None
    high: float | None
    bound: float | None
    published: float | None


class ChosenPlans(NamedTuple):
    """The plans of a chart: their measurements by name, the lengths with a time of the baseline, all names of plans
    with the baseline first, and the names that are drawn."""

    rivals: Mapping[str, Measurement]
    points: Sequence[LengthPoint]
    base: str
    every: Sequence[str]
    drawn: Sequence[str]


def chosen_plans(ranking: Ranking, found: Sequence[Ranking], mesh: Mesh | None) -> ChosenPlans | None:
    """The winner at each length and then the fastest at the longest; None where fewer than two plans or lengths have a
    speed-up."""
    points, named = curves(ranking, found)
    every = [m for each in _alike(ranking, found) for m in each.rivals]
    rivals = {named(m): m for m in every if mesh is None or m.plan.mesh == mesh}
    base = _base(points, rivals)
    points = [point for point in points if base in point.seconds and len(point.seconds) > 1]
    if base is None or len(points) < 2:
        return None
    ranked = [_fastest_first(point, rivals, base) for point in points]
    winners = [names[0] for names in ranked if names]
    fastest = list(dict.fromkeys([*winners, *ranked[-1]]))[:MAX_SERIES]
    names = sorted(fastest)  # so that a plan has the same colour in all charts
    last = [name for name in points[-1].seconds if name in rivals]
    return ChosenPlans(rivals, points, base, list(dict.fromkeys([base, *last, *names])), names) if names else None


def _fastest_first(point: LengthPoint, rivals: Mapping[str, Measurement], base: str) -> list[str]:
    return sorted((name for name in point.seconds if name in rivals and name != base), key=point.seconds.__getitem__)


def speed_up_chart(
    ranking: Ranking,
    found: Sequence[Ranking],
    papers: Sequence[PublishedComparison],
    mesh: Mesh | None,
    tall: int = 300,
) -> Chart | None:
    """The chart of a workload without its length; `tall` is its height on a wide screen."""
    chosen = chosen_plans(ranking, found, mesh)
    if chosen is None:
        return None
    names, base = chosen.drawn, chosen.base
    short = {name: utf8(_short(name, chosen.every)) for name in names}
    rows = [row for name in names for row in _rows(chosen.points, name, base, chosen.rivals, papers)]
    left_out = len(chosen.every) - 1 - len(names)
    first, final = (format_length(chosen.points[at].seq_len) for at in (0, -1))
    above = any(row.bound and row.value > row.bound * (1 + VISIBLE) for row in rows)
    best = max(rows, key=lambda row: (row.tokens, row.value))

    def at(values: Iterable[tuple[SpeedUpPoint, float | None]]) -> list[CurvePoint]:
        return [
            CurvePoint(row.tokens, value, short[row.name], row.method, _tip(row), row.low, row.high)
            for row, value in values
            if value
        ]

    return Chart(
        TITLE,
        f"{ranking.workload.passes} on {ranking.best.target}",
        [point.method for point in chosen.points],
        f"Speed-ups over {base} from {first} to {final} tokens. At {final}: {best.name}, {times(best.value)}.",
        chart_table(COLUMNS, map(_cells, rows), ("plan", "tokens", "method", "95 % interval")),
        Curves(
            list(short.values()),
            at((row, row.value) for row in rows),
            "speed-up (times)",
            dotted=at((row, row.bound) for row in rows),
            stars=at((row, row.published) for row in rows),
            rules=[Rule(1.0, utf8(_short(base, chosen.every)))],
            focus=short[best.name],
            tall=tall,
        ),
        f"Speed-ups are over {base}."
        + " ★: measured by Brandon et al. 2023." * any(row.published for row in rows)
        + f" The {len(names)} fastest plans at {final}; {not_drawn(left_out)}." * (left_out > 0)
        + f" {ABOVE_BOUND}" * above,
        group=workload_label(ranking.workload, f"{first} to {final}") if mesh is None else _beside(ranking),
    )


def _base(points: Sequence[LengthPoint], rivals: Mapping[str, Measurement]) -> str | None:
    """The baseline: the contiguous ring, else the first plan that has a time at most lengths."""
    counts = {name: sum(name in point.seconds for point in points) for name in rivals if rivals[name].devices > 1}
    order = sorted(
        (name for name, count in counts.items() if count),
        key=lambda name: (not name.startswith("ring/contiguous"), "/contiguous" not in name, -counts[name]),
    )
    return order[0] if order else None


def _short(name: str, others: Sequence[str]) -> str:
    """Scheme and layout, where these distinguish it from the others."""
    brief = [other.partition("@")[0].rpartition("/")[0] for other in others]
    own = name.partition("@")[0].rpartition("/")[0]
    return own if brief.count(own) == 1 else name


def _rows(
    points: Sequence[LengthPoint],
    name: str,
    base: str,
    rivals: Mapping[str, Measurement],
    papers: Sequence[PublishedComparison],
) -> Iterator[SpeedUpPoint]:
    for point in points:
        if name not in point.seconds:
            continue
        here = {m.printed_plan: m for m in (point.ranking.rivals if point.ranking else ())}
        found, over = (here.get(point.plans[each], rivals[each]) for each in (name, base))
        same = point.ranking and found.speedup and found.speedup.over == over.plan
        interval = found.speedup.ci95 if found.speedup and same else None
        yield SpeedUpPoint(
            tokens=point.seq_len,
            name=name,
            method=point.method,
            value=point.seconds[base] / point.seconds[name],
            low=interval[0] if interval else None,
            high=interval[1] if interval else None,
            bound=_bound(found, over, point.seq_len),
            published=_published(found, over, point.seq_len, papers),
        )


def _bound(m: Measurement, over: Measurement, seq_len: int) -> float | None:
    """The largest gain of the plan's layout at a length over the contiguous layout, by whole tiles; None where the base
    differs in more than its layout."""
    own, base = m.plan, over.plan
    if base.layout != "contiguous" or replace(own, layout=base.layout) != base:
        return None
    work = replace(m.workload, seq_len=seq_len)
    if attention_bound(m) is None or seq_len == m.workload.seq_len:
        layer = m.bound.layer if m.bound else None
        return attention_bound(m) and (layer if work.passes == STEP else attention_bound(m))
    plan = m.plan
    try:
        if why_unsupported(plan, work, "cpu"):
            return None
        found = bounds(work, plan)
        return found.layer if work.passes == STEP else found.attention_only
    except (BadInput, ValueError):
        return None


def _published(m: Measurement, over: Measurement, seq_len: int, papers: Sequence[PublishedComparison]) -> float | None:
    """A paper's measurement of the same plan over the same base, on the same machine, model and mesh."""
    plan, base = m.plan, over.plan
    if m.workload.passes != STEP or plan.layout != "striped" or base.layout != "contiguous" or plan.mesh != base.mesh:
        return None
    mesh = f"ring={plan.size('ring')},tensor={plan.size('tensor')}"
    own = m.target.hardware, m.workload.model, mesh, seq_len
    return next((e.published for e in papers if (e.hardware, e.model, e.mesh, e.seq_len) == own), None)


def _tip(row: SpeedUpPoint) -> str:
    bound = f", bound {times(row.bound)}" if row.bound else ""
    return tip(f"{row.name} at {format_length(row.tokens)} tokens: {times(row.value)}{bound}, {row.method}")


def _cells(row: SpeedUpPoint) -> list[str]:
    interval = f"{row.low:.2f} to {row.high:.2f}" if row.low else NOTHING
    ends = map(times, (row.bound, row.published))
    return [row.name, format_length(row.tokens), row.method, times(row.value), interval, *ends]
