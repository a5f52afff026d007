"""The recommendation of a run: a plan, the confidence in it, its limits, and the length at which the answer changes.

It is a pure function of the measurements: every reader of a run computes it again, so that it cannot contradict the
measurements. The recommendation is for the strongest pass and, within it, the longest sequence; the other workloads of
the run are in `others`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from stripectl.analysis.answer import answer, or_list, question, ties, why_above_bound
from stripectl.analysis.confidence import LEVELS, WIDE_INTERVAL, confidence_level
from stripectl.analysis.crossover import Curves, crossover
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
from stripectl.core.defaults import with_mesh, with_tile
from stripectl.core.plan import Plan, parse_plan
from stripectl.core.workload import STEP
from stripectl.export.integration import usage_of
from stripectl.results.measurement import (
    Measurement,
    attention_bound,
    flags_text,
    over_one_device,
    ratio_interval,
    refusals_and_failures,
    simulation_of,
    with_speedups,
)
from stripectl.results.noise import disturbances
from stripectl.results.run import Run
from stripectl.simulate.cost_model import PARTS

MAX_REASON_CHARACTERS = 200  # characters of the reason of a refused plan


def recommend(run: Run) -> dict[str, Any] | None:
    """The recommendation of a run as plain data, seconds and bytes; None where no plan has a time."""
    measurements = with_speedups(run.measurements)
    ranked = rankings(measurements)
    if not ranked:
        return None
    first = by_strongest_method(ranked)
    drawn: dict[Any, Curves] = {}
    others = [entry(each, ranked, measurements, drawn) for each in ranked if each is not first]
    return entry(first, ranked, measurements, drawn) | {"use": usage_of(first.best), "others": others}


def entry(
    ranking: Ranking, ranked: Sequence[Ranking], run: Sequence[Measurement], drawn: dict[Any, Curves]
) -> dict[str, Any]:
    """The recommendation for one workload and target."""
    best, second = ranking.best, ranking.runner_up
    changes, lengths = crossover(ranking, ranked, drawn)
    limits, bound, gain = limits_of_measurement(best, run), layout_bound(best), layout_gain(ranking)
    if bound and gain and best.speedup and gain["over"] != best.speedup["over"]:  # the bound is for another gain
        bound |= {"reached": None, "above": None}
    found = {
        "workload": best.workload.to_json(),
        "target": str(best.target),
        "plan": str(best.plan),
        "flags": dict(best.flags) if best.flags else None,
        "method": best.method,
        "headline": recommendation_headline(ranking),
        "question": question(best.workload, str(best.target), best.devices),
        "answer": answer(ranking, gain),
        "ties": [m.printed_plan for m in ties(ranking)[1:]],
        "names": layout_names(ranking),
        "median_s": best.median_s,
        "ci95_s": list(best.ci95_s) if best.ci95_s else None,
        "tokens_per_s": best.tokens_per_s,
        "gain": gain,
        "over_one_device": over_one_device(best, run),
        "bottleneck_shares": limits,
        "limits_method": limits and ("simulated" if best.method == "measured" else best.method),
        "bound_by": max(limits, key=lambda part: limits[part]) if limits else None,
        "bound": bound,
        "runner_up": second and second.printed_plan,
        "margin": second and margin_of(best, second),
        "too_close": ranking.too_close(best, second) if second else None,
        "crossover": changes,
        "lengths": lengths,
        "confidence": confidence(ranking),
        "peak_bytes": best.peak_bytes,
        "hbm_bytes": best.hbm_bytes,
        "memory": dict(best.memory) if best.memory else None,
        "step_parts": dict(best.step_parts) if best.step_parts else None,
        "refused": refused_entry(ranking),
    }
    return found | {"reasons": reasons(found, ranking, run)}


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
    return or_list(list(dict.fromkeys(short[str(m.plan)] + flags_text(m.flags) for m in ties(ranking))))


def layout_names(ranking: Ranking) -> str:
    """The best plan by scheme and layout only, and plans that may be as fast."""
    plans = [m.plan for m in ties(ranking)]
    return or_list(list(dict.fromkeys(f"{plan.scheme}/{plan.layout}" for plan in plans)))


def layout_gain(ranking: Ranking) -> dict[str, Any] | None:
    """The speed-up over the plan with the default tile and mesh, where the run also has that, otherwise over the
    contiguous ring. Measured plans were sampled in alternation, so the interval is paired."""
    best, usual = ranking.best, default_plan(ranking.best)
    base = next((m for m in ranking.rivals if m.plan == usual and m.flags == best.flags), None)
    if base is None or base is best or not base.median_s or not best.median_s:
        return dict(best.speedup) if best.speedup else None
    interval = ratio_interval(base.samples_s, best.samples_s)
    return {"over": str(base.plan), "value": base.median_s / best.median_s, "ci95": interval and list(interval)}


def default_plan(m: Measurement) -> Plan:
    """The same scheme, layout and kernel with the default mesh and tile."""
    plan = m.plan
    softmax = plan.softmax and replace(plan.softmax, tile=None, backward=None)
    bare = with_mesh(replace(plan, tile=None, backward=None, mesh=None, softmax=softmax), plan.devices)
    return with_tile(bare, m.workload, m.target.kind)


def limits_of_measurement(m: Measurement, run: Sequence[Measurement]) -> dict[str, float] | None:
    """The measurement's own limits, else the limits in its simulation."""
    other = simulation_of(m, run)
    known = m.bottleneck_shares or (other.bottleneck_shares if other else None) or {}
    found = {part: min(1.0, known[part]) for part in PARTS if part in known}
    return found or None


def layout_bound(m: Measurement) -> dict[str, Any] | None:
    """The largest gain of its layout over the contiguous layout, and the share that was reached, for attention
    only and not for a step; None where it is unknown."""
    most, layer = attention_bound(m), (m.bound or {}).get("layer")
    if m.devices == 1 or most is None:
        return None
    own = replace(m.plan, layout="contiguous")
    alike = m.speedup is not None and parse_plan(m.speedup["over"]) == own and m.workload.passes != STEP
    reached = m.speedup["value"] / most if m.speedup and alike else None
    found = {"attention_only": most, "layer": layer, "reached": reached}
    return found | {"above": why_above_bound(found)}


def confidence(ranking: Ranking) -> dict[str, Any]:
    """A level, a word and a sentence: how the time was obtained, and whether it distinguishes the plan from the
    next."""
    best, second = ranking.best, ranking.runner_up
    word, said = {"measured": _measured, "simulated": _simulated}.get(best.method, _predicted)(ranking)
    level = confidence_level(ranking, published_error(best))
    found = {"level": level, "grade": LEVELS[level - 1]}
    if second is None or not ranking.too_close(best, second):
        return found | {"word": word, "sentence": said}
    doubt = "is smaller than predictions can resolve"
    if best.method == "measured":
        doubt = "has an interval that contains zero"
    elif best.method == "simulated" and (speedup_error(ranking.pairs) or 0.0) > MIN_MARGIN:
        doubt = "is within the simulation's error"
    return found | {"word": "ambiguous", "sentence": f"{said} The margin over the runner-up {doubt}."}


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
    best, source = ranking.best, str((ranking.best.cost_source or {}).get("source"))
    grounds = {
        "measured_tile": f"The {best.devices} devices did not run; tiles were timed on this machine.",
        "datasheet": "Nothing ran; the time comes from published figures.",
        **{each: f"The plan did not run; tiles take {taken}." for each, taken in TABLED.items()},
    }
    words = grounds.get(source, f"The plan did not run; its time comes from {source}.")
    word = "datasheet" if source == "datasheet" else "simulated"
    if not ranking.pairs:
        return word, f"{words} {accuracy_sentence(best)}"
    worst, ratio = max(abs(pair.error) for pair in ranking.pairs), speedup_error(ranking.pairs)
    also = "" if ratio is None else f" and speed-ups by up to {ratio:.0%}"
    return word, f"{words} Where a plan was both measured and simulated, times were off by up to {worst:.0%}{also}."


TABLED = {
    "estimated_cycles": "the compiler's estimated cycles",
    "bundles": "the bundles of the compiler's final schedule",
    "published": "published times of the kernel",
}


def published_error(m: Measurement) -> float | None:
    """The mean error of such predictions against published times; None where no times are published."""
    from stripectl.analysis.accuracy.attention import known_error

    if (m.cost_source or {}).get("source") not in ("bundles", "published"):
        return None
    known = known_error(m.target.hardware, m.workload.passes)
    return known.error.mean if known else None


def accuracy_sentence(m: Measurement) -> str:
    """The error of such predictions against published times of attention on one device of this kind."""
    from stripectl.analysis.accuracy.attention import known_error  # computes predictions, which nothing else here does

    known = known_error(m.target.hardware, m.workload.passes)
    unknown = "No plan was both measured and simulated here, so its error is not known."
    if known is None or (m.cost_source or {}).get("source") not in ("bundles", "published"):
        return unknown
    error = known.error
    fitted = ", to which its costs were fitted" * known.fitted
    return (
        f"Times of attention on one device that are predicted this way were within {error.mean:.0%} of {error.rows} "
        f"published measurements on {known.hardware} (geometric mean; the worst {error.worst:.0%}; {known.passes} "
        f"passes of {known.measured}{fitted})."
    )


def _predicted(ranking: Ranking) -> tuple[str, str]:
    words = {**TABLED, "datasheet": "the times that published figures allow"}

    def taken(known: Mapping[str, Any]) -> str:
        return words.get(str(known.get("source")), f"what {known.get('source')} says")

    known = ranking.best.cost_source or {}
    tiles = f"tiles take {taken(known)}"
    if beside := known.get("softmax"):
        tiles = f"tiles of linear layers take {taken(known)}, tiles of softmax layers {taken(beside)}"
    lacking = known.get("memory_left_out")
    memory = "the compiler's figure" + (f", without {lacking}" if lacking else "")
    said = f"The plan did not run: its time is predicted, {tiles}; memory is {memory}."
    return "predicted", f"{said} {found}" if "within" in (found := accuracy_sentence(ranking.best)) else said


def refused_entry(ranking: Ranking) -> list[dict[str, Any]]:
    """The plans of the workload without a time, grouped where their reasons differ only in numbers."""
    return [
        {
            "status": those[0].status,
            "reason": shortened_reason(those[0].reason or "no reason was given"),
            "plans": [m.printed_plan for m in those],
        }
        for those in refusals_and_failures(ranking.members)
    ]


def shortened_reason(text: str) -> str:
    return text if len(text) <= MAX_REASON_CHARACTERS else f"{text[: MAX_REASON_CHARACTERS - 1]}…"
