"""The first screen: the question, its answer, the main figures with their methods, the confidence, a chart of the plans
that matter, and the limits of the best plan."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from stripectl.analysis.confidence import LEVELS
from stripectl.analysis.ranking import Ranking, contenders, rankings
from stripectl.analysis.striped_attention_paper import published_comparisons
from stripectl.core.workload import STEP
from stripectl.costs.cost_model import PARTS
from stripectl.reporters.html.charts import Chart, PageContext, Rule
from stripectl.reporters.html.speedup import ABOVE_BOUND, VISIBLE, speed_up_chart
from stripectl.reporters.html.times import plan_bars, plan_table, simulated_twin
from stripectl.results.labels import workload_label
from stripectl.results.measurement import Measurement, attention_bound
from stripectl.results.measurement_set import indexed
from stripectl.results.recommendation import Recommendation, Statement
from stripectl.util.units import NOTHING, duration, times

MAX_PLANS = 6  # of the chart
HERO, HERO_TALL = 660, 240  # pixels of its drawing on a wide screen
MIN_SHARE = 0.005  # of a part that is drawn


def first_screen(found: Recommendation, shown: Sequence[Measurement]) -> PageContext:
    """Everything that the first screen shows of a recommendation `found` in the measurements of a run."""
    ranked = rankings(shown)
    work = found.workload
    ranking = next(each for each in ranked if each.workload == work and each.best.target == found.target)
    return {
        "question": found.question,
        "answer": found.answer,
        "plan": str(found.plan),
        "workload": workload_label(work),
        "facts": facts(found),
        "confidence": found.confidence,
        "distorted": [each.text for each in found.statements if each.name == "distorted"],
        "levels": LEVELS,
        "limits": limits(found),
        "chart": replace(hero(ranking, ranked, shown), wide=HERO),
        "use": found.use or {},
        "reasons": found.reasons,
    }


def facts(found: Recommendation) -> list[Statement]:
    """Time, gain and memory."""
    unknown = Statement(name="memory", text="", value=NOTHING, note="neither measured nor compiled here")
    return [found.statement(name) or unknown for name in ("time", "gain", "memory")]


def limits(found: Recommendation) -> PageContext | None:
    """The parts of the machine, by the time that each would save if it were twice as fast, as shares of their sum; or
    the `parts` of a training step by their time."""
    shares, said, parts = found.bottleneck_shares or {}, found.statement("bound by"), found.statement("parts")
    total = sum(shares.values())
    if not total or said is None:
        return None
    segments, low = list[dict[str, object]](), 0.0
    for part in PARTS:
        share = shares.get(part, 0.0)
        if share / total >= MIN_SHARE:
            segments.append({"part": part, "low": 100 * low, "share": 100 * share / total, "saves": f"{share:.0%}"})
            low += share / total
    return {
        "first": said.value,
        "sentence": said.note,
        "segments": segments,
        "method": said.method,
        "steps": parts and parts.text,
    }


def hero(ranking: Ranking, ranked: Sequence[Ranking], shown: Sequence[Measurement]) -> Chart:
    """Speed-ups over the lengths of the run where it has several, else the plans that matter with their bound."""
    work = ranking.workload
    lengths = {each.workload.seq_len for each in ranked if each.workload.without("seq_len") == work.without("seq_len")}
    if len(lengths) > 1:
        mesh = ranking.best.plan.mesh if work.passes == STEP and work.model else None
        papers = published_comparisons(shown)
        if drawn := speed_up_chart(ranking, ranked, papers, mesh if papers else None, HERO_TALL):
            return drawn
    return plans_chart(ranking)


def plans_chart(ranking: Ranking) -> Chart:
    """The best plan, plans that may be as fast, the baseline of speed-ups, and the best plan of each scheme and
    layout."""
    best, run, bound = ranking.best, indexed(ranking.members), bound_rule(ranking)
    rows = [(m, simulated_twin(run, m)) for m in plans_that_matter(ranking)]
    answers = {best.key, *(m.key for m, _ in rows if ranking.too_close(best, m))}
    above = bound is not None and (best.median_s or 0.0) < bound.value * (1 - VISIBLE)
    return Chart(
        "Which plan is fastest?",
        f"{best.workload.passes} on {best.target}",
        [m.method for m, _ in rows],
        f"Times of the plans that matter. The fastest: {best.plan}, {best.method}, {duration(best.median_s)}.",
        plan_table(rows),
        plan_bars(rows, answers, HERO_TALL, bound),
        ABOVE_BOUND * above,
        group=workload_label(best.workload),
    )


def plans_that_matter(ranking: Ranking) -> list[Measurement]:
    """The plans, fastest first: only the fastest of each scheme and layout, because tiles have their own chart."""
    kinds: dict[Any, Measurement] = {}
    for m in ranking.rivals:
        kinds.setdefault((m.plan.scheme, m.plan.layout), m)
    several = len(kinds) > 1
    found = list(kinds.values())[:MAX_PLANS] if several else list(ranking.rivals[:MAX_PLANS])
    over = ranking.best.speedup and ranking.best.speedup.over
    base = next((m for m in ranking.rivals if m.plan == over), None)
    if base is not None and all(m is not base for m in found):
        found = [*found[: MAX_PLANS - 1], base]
    return sorted(found, key=lambda m: (m is not ranking.best, m.median_s or 0.0))


def bound_rule(ranking: Ranking) -> Rule | None:
    """The least time, in seconds, that the balance of tiles allows for the best plan, from the time of its baseline.
    None where the baseline has another mesh, scheme or tile: then more than the layout differs, and the bound does not
    hold."""
    best = ranking.best
    over = best.speedup.over if best.speedup else None
    base = next((m for m in contenders(ranking.members) if m.plan == over), None)
    most = (best.bound.layer if best.bound else None) if best.workload.passes == STEP else attention_bound(best)
    if not base or not base.median_s or not most or replace(base.plan, layout=best.plan.layout) != best.plan:
        return None
    return Rule(base.median_s / most, f"bound {times(most)}: {duration(base.median_s / most)}")
