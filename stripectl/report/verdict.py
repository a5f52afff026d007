"""What a run says: for every workload the fastest plan, how sure that is, and how far the bound is.

Plans are ranked within the strongest method that timed them, since a measured and a simulated time do not compare.
"""

from collections.abc import Sequence
from typing import Any

from stripectl import console
from stripectl.console import duration, times
from stripectl.measurement import METHODS, Measurement, ratio_interval
from stripectl.plan import parse_plan

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
    best, second = rivals[0], rivals[1] if len(rivals) > 1 else None
    alone = next((m for m in members if m.devices == 1 and m.method == method and m is not best), None)
    bound = best.bound or {}
    return {
        "title": console.describe(best.workload),
        "pass": best.workload.passes,
        "headline": _headline(best, second, rivals),
        "plan": best.plan,
        "target": best.target,
        "method": method,
        "time": console.spread(best),
        "speedup": _speedup(best),
        "bound": {name: times(bound.get(name)) for name in ("attention_only", "layer")},
        "over_one_device": times(alone.median_s / best.median_s)
        if alone and alone.median_s and best.median_s
        else None,
        "devices": best.devices,
        "cautions": [*_cautions(best, second, pairs), *_not_ranked(candidates, method)],
    }


def _headline(best: Measurement, second: Measurement | None, rivals: Sequence[Measurement]) -> str:
    layouts = [parse_plan(m.plan).layout for m in rivals]
    distinct = len(set(layouts)) == len(rivals)
    first, *others = layouts if distinct else [m.plan for m in rivals]
    if second is None:
        return f"{first}: the only plan timed"
    return f"{first} and {others[0]} are not told apart" if _tied(best, second) else f"{first} is fastest"


def _tied(best: Measurement, second: Measurement) -> bool:
    if best.samples_s and second.samples_s and (interval := ratio_interval(second.samples_s, best.samples_s)):
        return interval[0] <= 1
    return best.median_s == second.median_s


def _speedup(best: Measurement) -> str:
    """Value, what it is over, and the interval or why there is none."""
    if not best.speedup:
        return "none: this is the plan that others are compared with"
    over = parse_plan(best.speedup["over"]).layout
    text = f"{times(best.speedup['value'])} over {over}"
    if interval := best.speedup["ci95"]:
        return f"{text}, 95 % interval {interval[0]:.2f} to {interval[1]:.2f}"
    return f"{text}, " + (_count(best) if best.method == "measured" else best.method) + ", no interval"


def _count(m: Measurement) -> str:
    return f"{len(m.samples_s)} sample" + "s" * (len(m.samples_s) != 1)


def _cautions(best: Measurement, second: Measurement | None, pairs: Sequence[dict[str, Any]]) -> list[str]:
    said = {"measured": _measured, "simulated": _simulated}.get(best.method)
    words = said(best, pairs) if said else ["Compiled and not run: the time is predicted."]
    if second and best.median_s and second.median_s:
        off = max((abs(pair["speedup_error"]) for pair in pairs if pair["speedup_error"] is not None), default=None)
        margin, runner = second.median_s / best.median_s - 1, parse_plan(second.plan).layout
        text = f"The runner-up, {runner}, takes {margin:.1%} longer"
        less = best.method == "simulated" and off is not None and margin < off
        words.append(f"{text}, which is less than that error: treat them as equal." if less else f"{text}.")
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
        "measured_tile": f"Simulated: the {best.devices} devices were not run. Tile times were measured on this machine.",
        "datasheet": "Simulated from published figures: nothing was run.",
    }
    words = [grounds.get(str(source), f"Simulated from {source}: the plan was not run.")]
    if not pairs:
        return [*words, "No plan was both measured and simulated here, so the error of the simulation is not known."]
    worst = max(abs(pair["error"]) for pair in pairs)
    ratios = [abs(pair["speedup_error"]) for pair in pairs if pair["speedup_error"] is not None]
    also = f" and speed-ups by up to {max(ratios):.0%}" if ratios else ""
    return [*words, f"Where a ring was measured and simulated, times were off by up to {worst:.0%}{also}."]


def _not_ranked(candidates: Sequence[Measurement], method: str) -> list[str]:
    ranked = {m.plan for m in candidates if m.method == method}
    others = {m.plan for m in candidates} - ranked
    return [f"Not ranked, since they were not {method}: {', '.join(sorted(others))}."] if others else []


def simulation(shown: Sequence[Measurement]) -> list[dict[str, Any]]:
    """Every plan that was both measured and simulated, and how far the simulation is off."""
    twins = {(m.workload, m.plan, m.target): m for m in shown if m.method == "simulated" and m.median_s}
    pairs = []
    for m in shown:
        twin = twins.get((m.workload, m.plan, m.target))
        if m.method != "measured" or not m.median_s or not twin or not twin.median_s:
            continue
        both = [each.speedup["value"] if each.speedup else None for each in (m, twin)]
        pairs.append(
            {
                "title": console.describe(m.workload),
                "pass": m.workload.passes,
                "plan": m.plan,
                "target": m.target,
                "measured": console.spread(m),
                "simulated": duration(twin.median_s),
                "error": twin.median_s / m.median_s - 1,
                "measured_speedup": console.speedup(m),
                "simulated_speedup": times(both[1]) if both[1] else "base",
                "speedup_error": both[1] / both[0] - 1 if both[0] and both[1] else None,
            }
        )
    return pairs
