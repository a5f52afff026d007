"""Predictions compared with limits that no machine can exceed: its FLOPs, its links, its devices, the balance of tiles,
the scores of the mask.

A prediction that exceeds a limit is a defect of the prediction. It is marked and never recommended.
"""

from collections.abc import Iterator
from dataclasses import replace

from stripectl.core.plan import Plan
from stripectl.results.measurement import Measurement, attention_bound
from stripectl.results.measurement_set import MeasurementSet, device_scaling_key
from stripectl.util.units import duration, rate, times

BOUND_SLACK = 0.03  # of a bound: rounding up to whole tiles and calls on one side of a comparison may take this much


def why_implausible(m: Measurement, run: MeasurementSet) -> str | None:
    """The bound that a predicted time breaks, and by how much; None for a time that is possible, or was measured."""
    if m.method == "measured" or m.status != "ok" or not m.median_s:
        return None
    return next(_broken(m, run), None)


def implausible_sentences(run: MeasurementSet) -> list[str]:
    """The predictions that break a bound, each once."""
    said = (
        f"{m.plan}: {why}. It is not recommended. Try --method measured where it can run."
        for m in run
        if (why := why_implausible(m, run))
    )
    return list(dict.fromkeys(said))


def fast_sentences(run: MeasurementSet) -> list[str]:
    """Name the plans that are faster than a reader expects, each once."""
    said = (f"{m.plan} {m.workload.passes}, {m.method}: {why}" for m in run if (why := why_so_fast(m, run)))
    return list(dict.fromkeys(said))


def _broken(m: Measurement, run: MeasurementSet) -> Iterator[str]:
    if m.tiles and m.tiles.efficiency > 1 + BOUND_SLACK:
        yield f"{m.plan.scheme} computes {1 / m.tiles.efficiency:.0%} of the scores that the mask leaves"
    reached, peak = m.flops_per_s_per_device, m.peak_flops_per_s
    if reached and peak and reached > peak * (1 + BOUND_SLACK):
        yield f"it computes {rate(reached, 'FLOP/s')} per device, {reached / peak - 1:.0%} above the peak"
    if (least_s := sending_s(m)) and m.median_s and least_s > m.median_s * (1 + BOUND_SLACK):
        over = least_s / m.median_s - 1
        yield f"all links of a device need {duration(least_s)} for the bytes that it sends, {over:.0%} longer"
    alone = run.alone.get(device_scaling_key(m))
    if alone and alone.median_s and m.median_s and same_tiles(m, alone):
        gain = alone.median_s / m.median_s
        if m.devices > 1 and gain > m.devices * costliest_tile(m) * (1 + BOUND_SLACK):
            yield f"{m.devices} devices are {times(gain)} as fast as one of them with the same kernel and tile"
    if (found := over_contiguous(m, run)) and found[0] > found[1] * (1 + BOUND_SLACK):
        gain, most = map(times, found)
        yield f"it is {gain} as fast as the contiguous layout, which the balance of tiles limits to {most}"


def sending_s(m: Measurement) -> float | None:
    """The least time for the bytes that a device sends, over all its links at once."""
    machine = m.target.machine  # for runs that do not hold the rate
    links = m.links_bytes_per_s_one_way or (machine and machine.links_bytes_per_s_one_way)
    return sum(m.bytes.values()) / links if links and m.bytes and m.devices > 1 else None


def same_tiles(m: Measurement, other: Measurement) -> bool:
    """Whether two plans compute with the same kernel and tiles."""
    mine, theirs = m.plan, other.plan
    return (mine.kernel, mine.tile, mine.backward) == (theirs.kernel, theirs.tile, theirs.backward)


def over_contiguous(m: Measurement, run: MeasurementSet) -> tuple[float, float] | None:
    """(speed-up over the same plan in the contiguous layout, its limit): the bound of its tiles, and the communication
    that the contiguous plan waits for."""
    plan, bound = m.plan, attention_bound(m)
    base = run.contiguous.get((*device_scaling_key(m), m.target, replace(plan, layout="contiguous")))
    if plan.layout == "contiguous" or not bound or not base or not base.median_s or not m.median_s:
        return None
    waits = min(0.9, 2 * (base.bottleneck_shares or {}).get("communication", 0.0))
    return base.median_s / m.median_s, bound * costliest_tile(m) / (1 - waits)


def costliest_tile(m: Measurement) -> float:
    """How much more expensive tiles of one plan may be than tiles of another: on one device a kernel may mask all its
    tiles and visit as many dead tiles, which it does not on several, and a layout may need fewer masks than another."""
    costs = m.cost_source.by_pass.values() if m.cost_source else ()
    masked = ((each.boundary_s + (each.dead_s or 0.0), each.whole_s) for each in costs)
    return max([1.0, *(most / whole for most, whole in masked if whole)])


def why_so_fast(m: Measurement, run: MeasurementSet) -> str | None:
    """Why a plan is more than N times as fast as one of its N devices, or a layout faster than its bound; None where
    neither is the case."""
    if m.status != "ok" or not m.median_s:
        return None
    alone = run.alone.get(device_scaling_key(m))
    if alone and alone.median_s and m.devices > 1:
        gain = alone.median_s / m.median_s
        if gain > m.devices:
            mine, theirs = m.plan, alone.plan
            why = "which masks more, and visits dead tiles"
            if not same_tiles(m, alone):
                why = f"which has {tile_text(theirs)}, not {tile_text(mine)}"
                if mine.kernel != theirs.kernel:
                    why = f"which has {theirs.kernel} with {tile_text(theirs)}, not {mine.kernel}"
            return f"{times(gain)} as fast as one device, {why}"
    found, bound = over_contiguous(m, run), attention_bound(m)
    if found and bound and bound * (1 + BOUND_SLACK) < found[0] <= found[1] * (1 + BOUND_SLACK):
        gain, most = times(found[0]), times(bound)
        return f"{gain} over contiguous, above the bound of {most}: contiguous waits for hops, or masks more tiles"
    return None


def tile_text(plan: Plan) -> str:
    own = f" (backward {plan.backward})" if plan.backward and plan.backward != plan.tile else ""
    return f"tiles of {plan.tile}{own}"
