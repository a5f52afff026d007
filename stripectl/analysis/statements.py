"""The statements of a recommendation, a line each; outputs arrange them and do not rephrase them."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from stripectl.analysis.distortions import MARK, sentence
from stripectl.analysis.explanation import crossover_phrase, kernel_phrase
from stripectl.results.findings import Distortion
from stripectl.results.fit import limit_sentences
from stripectl.results.labels import METHOD_WORDS
from stripectl.results.recommendation import Recommendation, Statement
from stripectl.util.units import NOTHING, nbytes, plural, rate, times, with_interval

MIN_SHARE = 0.005  # of a step: a smaller part is not named


def statements(found: Recommendation) -> tuple[Statement, ...]:
    """The lines of a recommendation, in the order of a card, without lines about which nothing is known. A figure that
    is distorted has a mark, and a line says how."""
    return tuple(marked(each, found.distortions) for each in _statements(found))


# The figure that a line states, by its name.
FIGURE_OF = {"time": "time", "gain": "speedup", "memory": "memory", "parts": "time"}


def marked(said: Statement, distorted: Sequence[Distortion]) -> Statement:
    """The line, with a mark after its figure where that is distorted."""
    figure = FIGURE_OF.get(said.name) if said.value != NOTHING else None
    if not any(figure in each.figures or (figure == "speedup" and "time" in each.figures) for each in distorted):
        return said
    value = f"{said.value} {MARK}" if said.value else None
    return replace(said, text=f"{said.text} {MARK}", value=value)


def _statements(found: Recommendation) -> Iterator[Statement]:
    yield Statement(name="plan", text=found.printed_plan)
    yield time_statement(found)
    yield gain_statement(found)
    yield limits_statement(found)
    if found.step_parts:
        parts = ", ".join(
            f"{name.replace('_', ' ')} {seconds / found.median_s:.0%}"
            for name, seconds in found.step_parts.items()
            if seconds >= MIN_SHARE * found.median_s
        )
        yield Statement(name="parts", text=parts)
    if found.peak_bytes:
        yield memory_statement(found, found.peak_bytes)
    yield from (Statement(name="distorted", text=f"{MARK} {sentence(each)}") for each in found.distortions)
    yield margin_statement(found)
    yield Statement(name="crossover", text=crossover_phrase(found) or NOTHING)
    if refused := sum(len(group.plans) for group in found.refused):
        yield Statement(name="left out", text=f"{plural(refused, 'plan')} without a time")
    sure = found.confidence
    yield Statement(name="confidence", text=f"{sure.grade}. {sure.sentence}", value=sure.grade, note=sure.sentence)


def time_statement(found: Recommendation) -> Statement:
    """The time with its interval and method, and the rate of tokens."""
    value, tokens = with_interval(found.median_s, found.ci95_s), rate(found.tokens_per_s, "tokens/s")
    text = f"{value} {METHOD_WORDS[found.method]}, {tokens}"
    return Statement(name="time", text=text, value=value, note=tokens, method=found.method)


def gain_statement(found: Recommendation) -> Statement:
    """The speed-up, its base, and the speed-up that the balance of tiles allows."""
    gain, bound = found.gain, found.bound
    if gain is None:
        note = "other plans are compared with this plan"
        return Statement(name="gain", text=f"{NOTHING}: {note}", value=NOTHING, note=note)
    value = times(gain.value)
    interval = f"95 % interval {gain.ci95[0]:.2f} to {gain.ci95[1]:.2f}" if gain.ci95 else ""
    text = f"{value}{f' ({interval})' if interval else ''} over {gain.over}{kernel_phrase(found)}"
    note = interval or f"over {str(gain.over).partition('@')[0]}"
    if bound and bound.above:
        note = f"{bound.above} ({times(bound.attention_only)})"
        text += f", {note}"
    elif bound and bound.reached:
        note = "; ".join(filter(None, [interval, f"bound {times(bound.attention_only)}"]))
        text += f"; the balance of tiles allows {times(bound.attention_only)}"
    return Statement(name="gain", text=text, value=value, note=note, method=found.method)


def limits_statement(found: Recommendation) -> Statement:
    """The part of the machine that limits the plan, and by how much; the other parts."""
    limits, first = found.bottleneck_shares, found.bound_by
    if not limits or first is None:
        return Statement(name="bound by", text=f"{NOTHING}: the run has no simulation of this plan")
    less = f"{limits[first]:.0%} less time"
    rest = ", ".join(f"{part} {share:.0%}" for part, share in limits.items() if part != first)
    text = f"{first}: {less} if {first} were twice as fast ({found.limits_method}); for the other parts: {rest}"
    note = f"If {first} were twice as fast, the plan would take {less}."
    return Statement(name="bound by", text=text, value=first, note=note, method=found.limits_method)


def memory_statement(found: Recommendation, needs: int) -> Statement:
    """The memory that a device needs and has, and the largest parts."""
    value, has = nbytes(needs), found.hbm_bytes
    text = f"{value} of {nbytes(has)} per device, {needs / has:.0%}" if has else f"{value} per device"
    if found.memory:
        total, largest = sum(found.memory.values()), sorted(found.memory.items(), key=lambda part: -part[1])
        text += "; " + ", ".join(f"{name} {each / total:.0%}" for name, each in largest)
    text += f"; and {nbytes(found.host_bytes)} of the host's memory per device" if found.host_bytes else ""
    text += "".join(f"; {each}" for each in limit_sentences([found], "it"))
    note = f"{needs / has:.0%} of the {nbytes(has)} of a device" if has else "per device"
    return Statement(name="memory", text=text, value=value, note=note, method=found.method)


def margin_statement(found: Recommendation) -> Statement:
    """How much longer the runner-up takes."""
    if found.runner_up is None or found.margin is None:
        return Statement(name="margin", text="none: the only plan timed")
    doubt = ", too close to tell" * bool(found.too_close)
    value = f"{max(0.0, found.margin):.1%}"
    return Statement(name="margin", text=f"{value} ahead of {found.runner_up}{doubt}", value=value)
