"""What a run says: for every workload the fastest plan, how sure that is, and how far the bound is.

Plans are ranked within the strongest method that timed them, since a measured and a simulated time do not compare.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from stripectl import console
from stripectl.measurement import (
    Measurement,
    attention_bound,
    over_one_device,
    ratio_interval,
    simulation_error,
    twin,
)
from stripectl.plan import parse_plan
from stripectl.schema import METHODS
from stripectl.units import duration, times

WIDE = 0.05  # half an interval over its median


def verdicts(shown: Sequence[Measurement]) -> list[dict[str, Any]]:
    """A verdict for every workload that has a time."""
    groups: dict[Any, list[Measurement]] = {}
    for m in shown:
        if m.status == "ok" and m.median_s:
            groups.setdefault(m.workload, []).append(m)
    pairs = simulation(shown)
    return [_verdict(members, pairs) for members in groups.values()]


def _strength(m: Measurement) -> int:
    return METHODS.index(m.method) if m.method in METHODS else len(METHODS)


def _verdict(members: Sequence[Measurement], pairs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    candidates = [m for m in members if m.devices > 1] or members
    method = min(candidates, key=_strength).method
    rivals = sorted((m for m in candidates if m.method == method), key=lambda m: m.median_s or 0.0)
    best, names, bound = rivals[0], _names(members), rivals[0].bound or {}
    second = rivals[1] if len(rivals) > 1 else None
    pairs = [pair for pair in pairs if pair["pass"] == best.workload.passes]
    gain = over_one_device(best, members)
    return {
        "title": console.describe(best.workload),
        "pass": best.workload.passes,
        "headline": _headline(best, second, names, pairs),
        "plan": f"{best.plan}{console.flags(best)}",
        "target": best.target,
        "method": method,
        "time": console.spread(best),
        "speedup": _speedup(best, names),
        "bound": {"attention_only": times(attention_bound(best)), "layer": times(bound.get("layer"))},
        "over_one_device": times(gain) if gain else None,
        "devices": best.devices,
        "cautions": [*_cautions(best, second, names, pairs), *_not_ranked(candidates, method)],
    }


def _names(members: Sequence[Measurement]) -> dict[str, str]:
    """The shortest name that tells each plan from the others: layout, scheme/layout, or the whole."""
    plans = {m.plan: parse_plan(m.plan) for m in members if m.devices > 1}
    for short in (lambda plan: plan.layout, lambda plan: f"{plan.scheme}/{plan.layout}"):
        names = {text: short(plan) for text, plan in plans.items()}
        if len(set(names.values())) == len(names):
            break
    else:
        names = {text: text for text in plans}
    return {m.plan: m.plan for m in members} | names


def _headline(
    best: Measurement, second: Measurement | None, names: Mapping[str, str], pairs: Sequence[dict[str, Any]]
) -> str:
    name = names[best.plan] + console.flags(best)
    if second is None:
        return f"{name}: the only plan timed"
    if _too_close(best, second, pairs):
        return f"{name} or {names[second.plan]}{console.flags(second)}: too close to tell"
    once = best.method == "measured" and not best.ci95_s
    return f"{name} was fastest in {_count(best)}" if once else f"{name} is fastest"


def _too_close(best: Measurement, second: Measurement, pairs: Sequence[dict[str, Any]]) -> bool:
    """Whether the runner-up may be as fast: the interval of the ratio holds 1, or the simulation's error is larger."""
    assert best.median_s and second.median_s
    if interval := ratio_interval(second.samples_s, best.samples_s):
        return interval[0] <= 1
    return second.median_s / best.median_s - 1 <= (_speedup_error(pairs) or 0.0) * (best.method == "simulated")


def _speedup_error(pairs: Sequence[dict[str, Any]]) -> float | None:
    return max((abs(pair["speedup_error"]) for pair in pairs if pair["speedup_error"] is not None), default=None)


def _speedup(best: Measurement, names: Mapping[str, str]) -> str:
    """Value, what it is over, and the interval or why there is none."""
    if not best.speedup:
        return "none: this is the plan that others are compared with"
    text = f"{times(best.speedup['value'])} over {names.get(best.speedup['over'], best.speedup['over'])}"
    if interval := best.speedup["ci95"]:
        return f"{text}, 95 % interval {interval[0]:.2f} to {interval[1]:.2f}"
    return f"{text}, {_count(best) if best.method == 'measured' else best.method}, no interval"


def _count(m: Measurement) -> str:
    return f"{len(m.samples_s)} sample" + "s" * (len(m.samples_s) != 1)


def _cautions(
    best: Measurement, second: Measurement | None, names: Mapping[str, str], pairs: Sequence[dict[str, Any]]
) -> list[str]:
    said = {"measured": _measured, "simulated": _simulated}.get(best.method)
    words = said(best, pairs) if said else ["Compiled and not run: the time is predicted."]
    if second and best.median_s and second.median_s:
        runner_up, slower = names[second.plan] + console.flags(second), second.median_s / best.median_s - 1
        text = f"The runner-up, {runner_up}, takes {slower:.1%} longer"
        unsure = {
            "measured": " The interval of that holds zero.",
            "simulated": " That is within the simulation's error.",
        }
        doubt = unsure.get(best.method, "")
        words.append(f"{text}.{doubt if _too_close(best, second, pairs) else ''}")
    return words


def _measured(best: Measurement, pairs: Sequence[dict[str, Any]]) -> list[str]:
    if not best.ci95_s or not best.median_s:
        return [f"Measured once or twice ({_count(best)}), so nothing is known about noise."]
    half = (best.ci95_s[1] - best.ci95_s[0]) / 2 / best.median_s
    noisy = " That is wide: another run may rank close plans otherwise." if half > WIDE else ""
    return [f"Measured on {best.target}: the median of {_count(best)}, known to ±{half:.1%}.{noisy}"]


def _simulated(best: Measurement, pairs: Sequence[dict[str, Any]]) -> list[str]:
    source = (best.calibration or {}).get("source")
    grounds = {
        "measured_tile": f"Simulated: the {best.devices} devices were not run. Tiles were timed on this machine.",
        "datasheet": "Simulated from published figures: nothing was run.",
    }
    words = [grounds.get(str(source), f"Simulated from {source}: the plan was not run.")]
    if not pairs:
        return [*words, "No plan was both measured and simulated here, so the error of the simulation is not known."]
    worst, ratio = max(abs(pair["error"]) for pair in pairs), _speedup_error(pairs)
    also = "" if ratio is None else f" and speed-ups by up to {ratio:.0%}"
    return [*words, f"Where a plan was both measured and simulated, times were off by up to {worst:.0%}{also}."]


def _not_ranked(candidates: Sequence[Measurement], method: str) -> list[str]:
    ranked = {m.plan for m in candidates if m.method == method}
    others = {m.plan for m in candidates} - ranked
    return [f"Not ranked, since they were not {method}: {', '.join(sorted(others))}."] if others else []


def simulation(shown: Sequence[Measurement]) -> list[dict[str, Any]]:
    """Every plan that was both measured and simulated, and how far the simulation is off."""
    pairs = []
    for m in shown:
        other, error = twin(m, shown), simulation_error(m, shown)
        if other is None or error is None:
            continue
        ran, clocked = (each.speedup["value"] if each.speedup else None for each in (m, other))
        pairs.append(
            {
                "title": console.describe(m.workload),
                "pass": m.workload.passes,
                "plan": m.plan,
                "target": m.target,
                "measured": console.spread(m),
                "simulated": duration(other.median_s),
                "error": error,
                "measured_speedup": console.speedup(m),
                "simulated_speedup": console.speedup(other),
                "speedup_error": clocked / ran - 1 if ran and clocked else None,
            }
        )
    return pairs
