"""Why a plan is recommended, in sentences, each with the figures of the run that support it."""

from stripectl.analysis.distortions import across_classes
from stripectl.analysis.plausibility import why_so_fast
from stripectl.analysis.ranking import Ranking, short_names
from stripectl.core.lengths import format_length
from stripectl.core.workload import STEP
from stripectl.results.compiled_program import CompiledProgram
from stripectl.results.fit import limit_sentences
from stripectl.results.measurement import Measurement
from stripectl.results.measurement_set import MeasurementSet
from stripectl.results.recommendation import Recommendation
from stripectl.util.units import duration, nbytes, plural, rate, times

BOUND_BY = {
    "compute": "Compute limits it",
    "communication": "Communication limits it",
    "latency": "Latency of hops and calls limits it",
    "memory": "Memory bandwidth limits it",
}
MIN_SHARE = 0.005  # of the time; smaller shares are omitted
MAX_NAMED_PLANS = 3  # plans; of more, their number
SAID_BY = {"compiled": "predicted from the compiled schedule", "simulated": "simulated"}


def reasons(found: Recommendation, ranking: Ranking, run: MeasurementSet) -> tuple[str, ...]:
    """The sentences, the most important first; `found` is the recommendation so far."""
    said = (
        gain_sentence(found, ranking, run),
        limits_sentence(found),
        parts_sentence(found),
        transfer_sentence(ranking.best, run),
        links_sentence(ranking.best),
        gathers_sentence(ranking.best),
        memory_sentence(found),
        tiles_sentence(ranking),
        runner_up_sentence(found, ranking),
        crossover_sentence(found),
        schedule_sentence(ranking.best),
        unranked_sentence(found, ranking),
    )
    return tuple(sentence for sentence in said if sentence)


def plans_phrase(m: Measurement) -> str:
    return f"{len(m.samples_s)} sample" + "s" * (len(m.samples_s) != 1)


def gain_sentence(found: Recommendation, ranking: Ranking, run: MeasurementSet) -> str:
    """The gain over the baseline and over one device; a gain that is above its bound has the reason."""
    best, gain, bound = ranking.best, found.gain, found.bound
    if not gain:
        compared = len(ranking.rivals) > 1 and best.devices > 1
        return "The speed-ups of the other plans are relative to it." * compared
    over = short_names(ranking.members).get(str(gain.over), str(gain.over))
    text = f"It is {times(gain.value)} as fast as {over}"
    if gain.ci95:
        text += f" (95 % interval {gain.ci95[0]:.2f} to {gain.ci95[1]:.2f})"
    else:
        text += f" ({plans_phrase(best) if best.method == 'measured' else best.method}, no interval)"
    text += kernel_phrase(found)
    if bound and bound.above:
        text += f", {bound.above} ({times(bound.attention_only)})"
    elif bound and bound.reached:
        text += f": {bound.reached:.0%} of the {times(bound.attention_only)} that the balance of its tiles allows"
    alone = found.over_one_device
    if not alone:
        return f"{text}."
    why = why_so_fast(best, run) if alone > best.devices else None
    return f"{text}. {best.devices} devices are {why or f'{times(alone)} as fast as one device'}."


def kernel_phrase(found: Recommendation) -> str:
    """That a part of the gain is the kernel's; empty where both plans have the same kernel."""
    over = found.gain and found.gain.over
    if over is None or over.kernel == found.plan.kernel:
        return ""
    across = across_classes(found.plan, over)
    return f", with another kernel ({found.plan.kernel}, not {over.kernel}{f': {across}' if across else ''})"


def schedule_sentence(best: Measurement) -> str:
    """The cost of the compiler's schedule of a ring that another schedule would not have."""
    program = best.compiled_program or CompiledProgram()
    alone = [each for each in program.collectives if not each.asynchronous]
    size = nbytes(sum(each.sent_bytes * each.times for each in alone))
    number = sum(each.times for each in alone)
    waits = f"{number} of its transfers ({size} per device) run synchronously, so nothing hides them." if alone else ""
    copied = program.copies
    if copied is None or not copied.per_round:
        return waits
    takes = f", about {duration(copied.s_per_round)}" if copied.s_per_round else ""
    text = f"Each round of its loop copies {nbytes(copied.bytes_per_round)} of the data that it sends{takes}"
    return f"{text}{'; try unroll=2' * (best.plan.unroll == 1)}. {waits}".rstrip()


def limits_sentence(found: Recommendation) -> str:
    """The time that would be saved if a part of the machine were twice as fast."""
    limits, first = found.bottleneck_shares, found.bound_by
    if not limits or first is None:
        return ""
    others = (f"{part} {share:.0%}" for part, share in limits.items() if part != first and share >= MIN_SHARE)
    rest = f"; for the other parts: {joined}" if (joined := ", ".join(others)) else ""
    how = SAID_BY.get(found.limits_method or "", found.limits_method)
    return (
        f"{BOUND_BY[first]}: it would take {limits[first]:.0%} less time if {first} were twice as fast ({how}){rest}."
    )


def parts_sentence(found: Recommendation) -> str:
    """The parts of a training step by their share."""
    parts = {name: seconds for name, seconds in (found.step_parts or {}).items() if seconds}
    total = found.median_s
    if not parts or not total:
        return ""
    large = {name: seconds / total for name, seconds in parts.items() if seconds / total >= MIN_SHARE}
    shares = (f"{name.replace('_', ' ')} {share:.0%}" for name, share in large.items())
    return f"Parts of the step: {', '.join(shares)}."


def transfer_sentence(m: Measurement, run: MeasurementSet) -> str:
    """The bytes that a device sends, the time of a link for them, and the hidden share, as far as they are known."""
    total = sum((m.bytes or {}).values())
    if not total or m.devices == 1 or not m.median_s:
        return ""
    text, per_s = f"A device sends {nbytes(total)}", link_rate(m, run)
    if per_s:
        busy_s = total / per_s
        share = busy_s / m.median_s
        text += f". A link of {rate(per_s, 'B/s')} needs {duration(busy_s)} for this, "
        text += (
            f"{share:.0%} of the time" if share <= 1 else "longer than the whole run: several links are used at once"
        )
    if m.overlap and m.overlap.ratio is not None:
        text += f"; {m.overlap.ratio:.0%} of the communication is hidden ({m.overlap.source or 'by a profile'})"
    return f"{text}."


def links_sentence(m: Measurement) -> str:
    """The links that the mesh's hops use on the target, where times depend on them."""
    known, axes = m.cost_source, list(m.plan.axes)
    if not axes or known is None or known.links.hop is None or known.source.is_timed_here:
        return ""
    slower = known.links.slower_hops or {}
    own = [axis for axis in axes if axis not in slower]
    said = [f"every hop of {' and '.join(own)} has its own link"] * bool(own)
    said += [f"the slowest hop of {axis} has {slower[axis]}" for axis in axes if axis in slower]
    return f"On {m.target} {'; '.join(said)}."


def gathers_sentence(m: Measurement) -> str:
    """Whether the compiler of a TPU runs a plan's all-gathers as sums, because of the order of the mesh."""
    axes = gathered_axes(m)
    if not m.median_s or not m.cost_source or "+".join(sorted(axes)) not in m.cost_source.links.gathers_by_all_reduce:
        return ""
    sizes = " and ".join(f"{axis}={m.plan.size(axis)}" for axis in axes)
    return (
        f"All-gathers of {m.plan.scheme} over {sizes} are compiled as sums of twice the bytes, because the mesh does "
        "not follow the torus."
    )


def gathered_axes(m: Measurement) -> list[str]:
    """The axes over which a plan gathers: parameters in a training step, otherwise keys and values."""
    if m.workload.passes == STEP:
        return [axis for axis in m.plan.optimizer_axes if m.plan.size(axis) > 1]
    rewritten = {each.name for each in m.compiled_program.rewrites} if m.compiled_program else set[str]()
    return ["ring"] if "all-gather" in (m.bytes or {}) or "all-gather as all-reduce" in rewritten else []


def link_rate(m: Measurement, run: MeasurementSet) -> float | None:
    """Bytes/s, in one direction, of the slowest hop behind the times: from its own cost model, or its simulation's."""
    other = run.simulation_of(m)
    grounds = (each.cost_source for each in (m, other) if each and each.cost_source)
    known = next((each for each in grounds if each.links.hop), None)
    return known.links.slowest_bytes_per_s if known else None


def memory_sentence(found: Recommendation) -> str:
    needs, has = found.peak_bytes, found.hbm_bytes
    if not needs:
        return ""
    of = f", {needs / has:.0%} of {nbytes(has)}" if has else ""
    near = "".join(f" {each[0].upper()}{each[1:]}." for each in limit_sentences([found], "it"))
    return f"It needs {nbytes(needs)} of memory on each device{of}.{near}"


def tiles_sentence(ranking: Ranking) -> str:
    """A sentence where the method does not distinguish tiles."""
    many = len(ranking.alike)
    if not many:
        return ""
    best, others = ranking.best, f"{plural(many, 'other choice')} of tiles"
    is_fastest = all((best.median_s or 0.0) <= (m.median_s or 0.0) for m in ranking.alike)
    chosen = "first by less than the method can tell" if is_fastest else "the nearest to the kernel's default"
    return f"{others} {'are' if many > 1 else 'is'} as fast ({best.method}); its tiles are {chosen}."


def runner_up_sentence(found: Recommendation, ranking: Ranking) -> str:
    """The runner-up and its distance."""
    second = ranking.runner_up
    if second is None or found.margin is None:
        return ""
    doubt = ", which is too close to tell" * bool(found.too_close)
    more = "longer" if found.margin >= 0 else "less"  # among tiles that cannot be distinguished, the default is kept
    return f"The runner-up, {found.runner_up}, takes {abs(found.margin):.1%} {more}{doubt}."


def crossover_sentence(found: Recommendation) -> str:
    """The length at which the answer changes."""
    text = crossover_phrase(found)
    return f"{text[0].upper()}{text[1:]}." if text else ""


def crossover_phrase(found: Recommendation) -> str:
    """The same, as part of a sentence."""
    lengths = found.lengths
    if not lengths:
        return ""
    how = " and ".join(lengths.methods)
    first, last = format_length(lengths.first), format_length(lengths.last)
    if not found.crossover:
        return f"no other plan is clearly faster from {first} to {last} tokens ({how})"
    said = list[str]()
    for change in found.crossover:
        low, high = map(format_length, change.between)
        at = (
            f"about {approximate_length(change.seq_len)}, between {low} and {high}"
            if change.seq_len
            else f"{low} to {high}"
        )
        side = "below" if change.direction == "shorter" else "above"
        said.append(f"{side} {at} tokens, {change.plan} is faster ({change.method})")
    return "; ".join(said)


def approximate_length(seq_len: int) -> str:
    """A length between two others, as precisely as it is known."""
    thousands = seq_len / 1024
    return f"{thousands:,.0f}k" if thousands >= 10 else f"{thousands:.1f}k" if thousands >= 1 else str(seq_len)


def unranked_sentence(found: Recommendation, ranking: Ranking) -> str:
    """Say which plans were not ranked, and why."""
    ranked = {str(m.plan) for m in ranking.rivals}
    others = sorted(
        {str(m.plan) for m in ranking.members if m.status == "ok" and not m.is_search_probe}
        - ranked
        - {*ranking.broken}
    )
    rough = len({str(m.plan) for m in ranking.members if m.is_search_probe and m.status == "ok"} - ranked)
    which = ", ".join(others) if len(others) <= MAX_NAMED_PLANS else f"{len(others)} plans"
    said = [f"Not ranked because they were not {found.method}: {which}."] if others else []
    said += [f"{plan} is implausible and not ranked: {why}." for plan, why in ranking.broken.items()]
    if rough:
        said.append(
            f"A search timed {plural(rough, 'more plan')} in short runs and dropped {'them' if rough > 1 else 'it'}."
        )
    for group in found.refused:
        number = len(group.plans)
        which = f"{group.plans[0]} was" if number == 1 else f"{number} plans were"
        what = "refused" if group.status == "refused" else "not timed"
        said.append(f"{which} {what}: {group.reason.rstrip('.')}{'' if group.reason.endswith('…') else '.'}")
    return " ".join(said)
