"""The recommendation as cards of the page."""

from collections.abc import Mapping
from typing import Any

from stripectl.analysis.explanation import approximate_length
from stripectl.core.workload import Workload, format_length
from stripectl.results.labels import workload_label
from stripectl.results.measurement import flags_text
from stripectl.util.units import NOTHING, nbytes, rate, times, with_interval

UNKNOWN = f"{NOTHING}: the run has no simulation of this plan"


def recommendation_cards(found: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """One card for every workload with a time, the main workload of the run first."""
    return [recommendation_card(each) for each in (found, *found["others"])] if found else []


def recommendation_card(found: Mapping[str, Any]) -> dict[str, Any]:
    """A card: a few figures, and sentences for the rest."""
    work = Workload.from_json(found["workload"])
    return {
        "group": workload_label(work),
        "pass": work.passes,
        "headline": found["headline"],
        "answer": found["answer"],
        "plan": found["plan"] + flags_text(found["flags"]),
        "target": found["target"],
        "method": found["method"],
        "time": with_interval(found["median_s"], found["ci95_s"]),
        "tokens": rate(found["tokens_per_s"], "tokens/s"),
        "gain": gain_text(found["gain"]),
        "over": found["gain"] and found["gain"]["over"],
        "bound": bound_text(found["bound"]),
        "bound_by": bound_by_text(found),
        "limits_method": found["limits_method"],
        "margin": margin_text(found),
        "changes": [change_text(each) for each in found["crossover"]],
        "lengths": length_texts(found["lengths"]),
        "memory": memory_text(found) if found["peak_bytes"] else None,
        "confidence": found["confidence"],
        "reasons": found["reasons"],
        "use": found.get("use"),
    }


def gain_text(found: Mapping[str, Any] | None) -> str:
    """The gain with its interval."""
    if not found:
        return f"{NOTHING}: speed-ups are relative to this plan, or no other plan has as many devices"
    between = f", 95 % interval {found['ci95'][0]:.2f} to {found['ci95'][1]:.2f}" if found["ci95"] else ""
    return f"{times(found['value'])}{between}"


def bound_text(found: Mapping[str, Any] | None) -> str | None:
    """The bound over the contiguous layout, and the share that was reached."""
    if not found:
        return None
    layer = f", {times(found['layer'])} for a layer" if found["layer"] else ""
    reached = f"; {found['reached']:.0%} of the bound is reached" if found["reached"] else ""
    reached += f": {found['above']}" if found.get("above") else ""
    return f"{times(found['attention_only'])} by the balance of tiles{layer}{reached}"


def bound_by_text(found: Mapping[str, Any]) -> str:
    """The part of the machine that limits the plan, and by how much."""
    limits, first = found["bottleneck_shares"], found["bound_by"]
    return f"{first}: {limits[first]:.0%} less time if it were twice as fast" if limits else UNKNOWN


def memory_text(found: Mapping[str, Any]) -> str:
    of = f" of {nbytes(found['hbm_bytes'])}" if found["hbm_bytes"] else ""
    return f"{nbytes(found['peak_bytes'])}{of} per device"


def margin_text(found: Mapping[str, Any]) -> str:
    if not found["runner_up"]:
        return "the only plan timed"
    return f"{max(0.0, found['margin']):.1%}{', too close to tell' if found['too_close'] else ''}"


def change_text(found: Mapping[str, Any]) -> dict[str, str]:
    """Where the answer changes, and to what."""
    low, high = map(format_length, found["between"])
    side = "below" if found["direction"] == "shorter" else "above"
    near = (
        f"{side} about {approximate_length(found['seq_len'])} tokens" if found["seq_len"] else f"{side} {low} to {high}"
    )
    return {"at": near, "plan": found["plan"], "method": found["method"]}


def length_texts(found: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The lengths that were compared."""
    if not found:
        return None
    return {"first": format_length(found["first"]), "last": format_length(found["last"]), "methods": found["methods"]}
