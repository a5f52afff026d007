"""The recommendation of a run: a plan, the confidence in it, its limits, and the length at which the answer changes.

It is a pure function of the measurements: every reader of a run computes it again, so that it cannot contradict the
measurements. The recommendation is for the strongest pass and, within it, the longest sequence; the other workloads of
the run are in `others`.
"""

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from stripectl.analysis.answer import answer, or_list, question, ties, why_above_bound
from stripectl.analysis.confidence import LEVELS, WIDE_INTERVAL, confidence_level, distortions_of_time
from stripectl.analysis.crossover import Curves, crossover
from stripectl.analysis.distortions import distortions
from stripectl.analysis.explanation import plans_phrase, reasons
from stripectl.analysis.ranking import (
    MIN_MARGIN,
    Ranking,
    by_strongest_method,
    margin_of,
    rankings,
    short_names,
    speedup_error,
)
from stripectl.analysis.statements import statements
from stripectl.core.plan import LAYERS_APART, Plan
from stripectl.core.workload import STEP
from stripectl.costs.cost_model import PARTS
from stripectl.costs.defaults import with_defaults
from stripectl.export.integration import usage_of
from stripectl.results.case import flags_text
from stripectl.results.cost_source import CostOrigin
from stripectl.results.findings import Speedup
from stripectl.results.measurement import Measurement, attention_bound
from stripectl.results.measurement_set import MeasurementSet, refusals_and_failures
from stripectl.results.noise import disturbances
from stripectl.results.recommendation import Confidence, ReachedBound, Recommendation, RefusedPlans
from stripectl.results.run import Run
from stripectl.statistics.intervals import ratio_interval
from stripectl.util.units import plural

if TYPE_CHECKING:
    from stripectl.analysis.accuracy.attention import AttentionGroup

MAX_REASON_CHARACTERS = 200  # characters of the reason of a refused plan


def recommended(run: Run) -> Run:
    """Return the readable run with its recommendation, as reporters show it."""
    run = run.readable()
    return replace(run, recommendation=recommend(run))


def recommend(run: Run) -> Recommendation | None:
    """The recommendation of a run; None where no plan has a time."""
    measurements = run.results
    ranked = rankings(measurements)
    if not ranked:
        return None
    first = by_strongest_method(ranked)
    drawn: dict[Hashable, Curves] = {}
    others = tuple(recommendation_of(each, ranked, measurements, drawn) for each in ranked if each is not first)
    return replace(recommendation_of(first, ranked, measurements, drawn), use=usage_of(first.best), others=others)


def recommendation_of(
    ranking: Ranking, ranked: Sequence[Ranking], run: MeasurementSet, drawn: dict[Hashable, Curves]
) -> Recommendation:
    """The recommendation for one workload and target: its figures, and the sentences that follow from them."""
    found = recommended_figures(ranking, ranked, run, drawn)
    return replace(found, statements=statements(found), reasons=reasons(found, ranking, run))


def recommended_figures(
    ranking: Ranking, ranked: Sequence[Ranking], run: MeasurementSet, drawn: dict[Hashable, Curves]
) -> Recommendation:
    """The recommendation for one workload and target, without sentences about it."""
    best, second = ranking.best, ranking.runner_up
    changes, lengths = crossover(ranking, ranked, drawn)
    limits, gain = limits_of_measurement(best, run), layout_gain(ranking)
    return Recommendation(
        workload=best.workload,
        target=best.target,
        plan=best.plan,
        flags=best.flags or None,
        method=best.method,
        headline=recommendation_headline(ranking),
        question=question(best.workload, str(best.target), best.devices),
        answer=answer(ranking, gain),
        ties=tuple(m.printed_plan for m in ties(ranking)[1:]),
        names=layout_names(ranking),
        median_s=best.median_s or 0.0,
        ci95_s=best.ci95_s,
        tokens_per_s=best.tokens_per_s,
        gain=gain,
        over_one_device=run.over_one_device(best),
        bottleneck_shares=limits,
        limits_method=None if not limits else "simulated" if best.method == "measured" else best.method,
        bound_by=max(limits, key=lambda part: limits[part]) if limits else None,
        bound=layout_bound(best, gain),
        runner_up=second and second.printed_plan,
        margin=second and margin_of(best, second),
        too_close=ranking.too_close(best, second) if second else None,
        crossover=changes,
        lengths=lengths,
        confidence=confidence(ranking),
        peak_bytes=best.peak_bytes,
        hbm_bytes=best.hbm_bytes,
        host_bytes=best.host_bytes,
        memory=best.memory or None,
        step_parts=best.step_parts or None,
        refused=refused_plans(ranking),
        distortions=distortions(best),
    )


def recommendation_headline(ranking: Ranking) -> str:
    """The plans by their short names, with no more than is known about their order."""
    best, second = ranking.best, ranking.runner_up
    name = short_answer(ranking)
    if second is None:
        return f"{name}: the only plan timed"
    if ranking.too_close(best, second):
        return f"{name}: equally fast, as far as the run can tell"
    once = best.method == "measured" and not best.ci95_s
    return f"{name} was fastest in {plans_phrase(best)}" if once else f"{name} is fastest"


def short_answer(ranking: Ranking) -> str:
    """The best plan by its short name, and plans that may be as fast."""
    short = short_names(ranking.members)
    return or_list(short[str(m.plan)] + flags_text(m.flags) for m in ties(ranking))


def layout_names(ranking: Ranking) -> str:
    """The best plan by scheme and layout only, and plans that may be as fast."""
    return or_list(f"{m.plan.scheme}/{m.plan.layout}" for m in ties(ranking))


def layout_gain(ranking: Ranking) -> Speedup | None:
    """The speed-up over the plan with the default tile and mesh, where the run also has that, otherwise over the
    contiguous ring. Measured plans were sampled in alternation, so the interval is paired."""
    best, usual = ranking.best, default_plan(ranking.best)
    base = next((m for m in ranking.rivals if m.plan == usual and m.flags == best.flags), None)
    if base is None or base is best or not base.median_s or not best.median_s:
        return best.speedup
    interval = ratio_interval(base.samples_s, best.samples_s)
    return Speedup(over=base.plan, value=base.median_s / best.median_s, ci95=interval)


def default_plan(m: Measurement) -> Plan | None:
    """The same scheme, layout and kernel with the default mesh and tiles; None on a machine that is not known here."""
    plan = m.plan
    bare = replace(plan.without_tiles(), mesh=None)
    machine = m.target.machine
    return machine and with_defaults(bare, m.workload, machine, plan.devices, m.flags or {})


def limits_of_measurement(m: Measurement, run: MeasurementSet) -> dict[str, float] | None:
    """The measurement's own limits, else the limits in its simulation."""
    other = run.simulation_of(m)
    known = m.bottleneck_shares or (other.bottleneck_shares if other else None) or {}
    found = {part: min(1.0, known[part]) for part in PARTS if part in known}
    return found or None


def layout_bound(m: Measurement, gain: Speedup | None) -> ReachedBound | None:
    """The largest gain of its layout over the contiguous layout; and the share that was reached, for attention only and
    not for a step, where the `gain` that is shown is the gain over that layout; None where it is unknown."""
    most = attention_bound(m)
    if m.devices == 1 or most is None:
        return None
    own = replace(m.plan, layout="contiguous")
    alike = m.speedup is not None and m.speedup.over == own and m.workload.passes != STEP
    reached = m.speedup.value / most if m.speedup and alike else None
    found = ReachedBound(attention_only=most, layer=m.bound and m.bound.layer, reached=reached)
    if m.speedup and gain and gain.over != m.speedup.over:  # the bound is for another gain
        return replace(found, reached=None)
    return replace(found, above=why_above_bound(found))


def confidence(ranking: Ranking) -> Confidence:
    """A level, a word and a sentence: how the time was obtained, and whether it distinguishes the plan from the
    next."""
    best, second = ranking.best, ranking.runner_up
    word, said = {"measured": _measured, "simulated": _simulated}.get(best.method, _predicted)(ranking)
    level = confidence_level(ranking, published_error(best))
    if count := len(distortions_of_time(best)):
        said = f"{said} Lowered for {plural(count, 'distortion')} of the time."
    found = Confidence(level=level, grade=LEVELS[level - 1], word=word, sentence=said)
    if second is None or not ranking.too_close(best, second):
        return found
    doubt = "is too small for predictions to decide"
    if best.method == "measured":
        doubt = "is smaller than the noise"
    elif best.method == "simulated" and (speedup_error(ranking.pairs) or 0.0) > MIN_MARGIN:
        doubt = "is within the simulation's error"
    return replace(found, word="ambiguous", sentence=f"{said} The margin over the runner-up {doubt}.")


def _measured(ranking: Ranking) -> tuple[str, str]:
    best = ranking.best
    if not best.ci95_s or not best.median_s:
        return "ambiguous", f"Measured once or twice ({plans_phrase(best)}), so nothing is known about noise."
    half = (best.ci95_s[1] - best.ci95_s[0]) / 2 / best.median_s
    noisy = " This interval is wide: another run may rank close plans differently." if half > WIDE_INTERVAL else ""
    said = f"Measured on {best.target}: the median of {plans_phrase(best)}, known to ±{half:.1%}.{noisy}"
    disturbed = f" Disturbances during the run: {', '.join(found)}." if (found := disturbances(best)) else ""
    return "measured", said + disturbed


def _simulated(ranking: Ranking) -> tuple[str, str]:
    best, source = ranking.best, ranking.best.cost_source and ranking.best.cost_source.source
    if source == CostOrigin.MEASURED_TILE:
        words = f"The {best.devices} devices did not run; tiles were timed on this machine."
    elif source == CostOrigin.DATASHEET:
        words = "Nothing ran; the time comes from published figures."
    else:
        words = f"The plan did not run; times of tiles come from {source.phrase if source else 'an unknown source'}."
    word = "datasheet" if source == CostOrigin.DATASHEET else "simulated"
    if not ranking.pairs:
        unknown = "No plan was both measured and simulated here, so its error is not known."
        return word, f"{words} {accuracy_sentence(best) or unknown}"
    worst, ratio = max(abs(pair.error) for pair in ranking.pairs), speedup_error(ranking.pairs)
    also = "" if ratio is None else f" and speed-ups by up to {ratio:.0%}"
    return word, f"{words} Where a plan was both measured and simulated, times were off by up to {worst:.0%}{also}."


def published_group(m: Measurement) -> "AttentionGroup | None":
    """The published times of attention on one device of this kind, with the error of such predictions; None where no
    times are published."""
    from stripectl.analysis.accuracy.attention import known_error  # computes predictions, which nothing else here does

    if m.cost_source is None or not m.cost_source.source.has_published_error:
        return None
    return known_error(m.target.tables_of, m.plan.kernel, m.workload)


def published_error(m: Measurement) -> float | None:
    """The mean error of such predictions against published times; None where no times are published."""
    known = published_group(m)
    return known.error.mean if known else None


def accuracy_sentence(m: Measurement) -> str:
    """The error of such predictions against published times; empty where no times are published."""
    if (known := published_group(m)) is None:
        return unpublished_sentence(m)
    error, fitted = known.error, ", to which its costs were fitted" * known.fitted
    return (
        f"Predictions of the {known.passes} pass on {known.hardware} differ from {error.rows} published times "
        f"({known.measured}{fitted}) by {error.mean:.0%} on average and {error.worst:.0%} at worst."
    )


def unpublished_sentence(m: Measurement) -> str:
    """That no published time tells the error of such predictions; empty where the time has another source."""
    if m.cost_source is None or not m.cost_source.source.has_published_error:
        return ""
    passes = "the forward pass" if m.workload.passes == "forward" else "a backward pass"
    masks = {"windows" if "sliding" in mask else f"a {mask} mask" for _, mask in m.workload.kinds}
    mask = " and ".join(sorted(masks))
    return f"No published time of {m.plan.kernel} on {m.target.tables_of} tells the error of {passes} with {mask}."


def _predicted(ranking: Ranking) -> tuple[str, str]:
    known = ranking.best.cost_source
    tiles = f"times of tiles come from {known.source.phrase if known else 'an unknown source'}"
    for part, beside in (known.apart if known else {}).items():
        tiles += f", in {LAYERS_APART[part]} from {beside.source.phrase}"
    lacking = known and known.memory_left_out
    memory = "the compiler's figure" + (f", without {lacking}" if lacking else "")
    said = f"The plan did not run: its time is predicted, and {tiles}; memory is {memory}."
    return "predicted", f"{said} {accuracy_sentence(ranking.best)}".rstrip()


def refused_plans(ranking: Ranking) -> tuple[RefusedPlans, ...]:
    """Group the workload's plans without a time whose reasons differ only in numbers."""
    return tuple(
        RefusedPlans(
            status=those[0].status,
            reason=shortened_reason(str(those[0].reason or "no reason was given")),
            plans=tuple(m.printed_plan for m in those),
        )
        for those in refusals_and_failures(ranking.members)
    )


def shortened_reason(text: str) -> str:
    """A reason without the details that a compiler appends after two colons, and not longer than a few lines."""
    text = text.partition(" :: ")[0]
    return text if len(text) <= MAX_REASON_CHARACTERS else f"{text[: MAX_REASON_CHARACTERS - 1]}…"
