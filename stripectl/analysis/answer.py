"""The question that a run asks and its answer, each as one plain sentence.

Plans that cannot be distinguished are one answer with several names: "striped or zigzag ring attention".
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import replace

from stripectl.analysis.distortions import MARK, across_classes, is_distorted
from stripectl.analysis.ranking import Ranking
from stripectl.core.layout import Tile
from stripectl.core.lengths import format_length
from stripectl.core.plan import LAYERS_APART, Plan
from stripectl.core.scheme import schemes
from stripectl.core.workload import STEP, Workload
from stripectl.results.case import flags_text
from stripectl.results.findings import Speedup
from stripectl.results.measurement import Measurement
from stripectl.results.recommendation import ReachedBound
from stripectl.util.units import duration, plural, times

MAX_TIES = 6  # plans that are compared with the best
MAX_NAMES = 3  # names of plans that cannot be distinguished; of more, their number
MIN_GAIN = 1.005  # below it two plans are equally fast
ABOVE_BOUND = 1.0005  # share of a bound from which a gain visibly exceeds the bound
PASS_WORDS = {
    "forward": "a forward pass of attention",
    "forward-backward": "a forward and a backward pass of attention",
    STEP: "a training step",
}


def question(workload: Workload, target: str, devices: int) -> str:
    """The question: the work, its model and length, and the machine."""
    tokens = f"{format_length(workload.seq_len)} tokens"
    if workload.query_len:
        count = workload.query_len
        tokens = f"{format_length(count)} new {'query' if count == 1 else 'queries'} and {tokens} of keys"
    model = f" of model {workload.model}" if workload.model else ""
    what = PASS_WORDS.get(workload.passes, workload.passes)
    return f"Which plan is fastest for {what}{model} over {tokens} on {target} ({plural(devices, 'device')})?"


def ties(ranking: Ranking) -> list[Measurement]:
    """The best plan, and the next plans that may be as fast; of plans that differ only in tiles, only the best."""
    same_but_tiles = {m.key for m in ranking.alike}
    found = [ranking.best]
    for m in ranking.rivals[1 : MAX_TIES + 1]:
        if m.key in same_but_tiles:
            continue
        if not ranking.too_close(ranking.best, m):
            break
        found.append(m)
    return found


def answer(ranking: Ranking, gain: Speedup | None) -> str:
    """Which plan to use, and how much faster it is than which other plan; with a mark where times are distorted."""
    mark = f" {MARK}." if is_distorted(ranking.best, "time") or is_distorted(ranking.best, "speedup") else "."
    return unmarked_answer(ranking, gain) + mark


def unmarked_answer(ranking: Ranking, gain: Speedup | None) -> str:
    """The sentence of an answer, without a full stop."""
    best, equals = ranking.best, ties(ranking)
    name = equal_plans_phrase(equals, ranking.rivals)
    if best.devices == 1:
        return f"{name[0].upper()}{name[1:]} takes {duration(best.median_s)} on one device"
    if len(ranking.rivals) == 1:
        return f"Only {name} has a time: {duration(best.median_s)}"
    if gain and gain.value >= MIN_GAIN:
        across = across_classes(best.plan, gain.over)
        note = f" ({across})" if across else ""
        return f"Use {name}: {times(gain.value)} faster than {base_phrase(best, gain.over)}{note}"
    others = [m for m in ranking.rivals[1:] if all(m is not each for each in equals)]
    if not others or not best.median_s or not others[0].median_s:
        return f"Use {name}: no plan of this run is faster"
    behind = others[0].median_s / best.median_s - 1
    if abs(behind) < MIN_GAIN - 1:
        return f"Use {name}: {rival_phrase(others[0], best)} is as fast"
    return f"Use {name}: {rival_phrase(others[0], best)} takes {behind:.0%} longer"


def rival_phrase(rival: Measurement, best: Measurement) -> str:
    """The next plan behind the best; where only the mesh, the tiles or the layers apart differ, these alone."""
    if replace(rival.plan, mesh=best.plan.mesh) == best.plan:
        return f"a mesh of {mesh_words(rival.plan)}"
    tiles = {"tile": best.plan.tile, "backward": best.plan.backward}
    if rival.plan != best.plan and rival.plan.tile and replace(rival.plan, **tiles) == best.plan:
        own = rival.plan.backward
        backward = f" ({tile_words(own)} in the backward pass)" if own else " in both passes" * bool(best.plan.backward)
        return f"the same plan with tiles of {tile_words(rival.plan.tile)}{backward}"
    own = rival.plan
    if (own.softmax or own.sliding) and with_layers_of(own, best.plan) == best.plan:
        return words_of_layers_apart([own]) or plan_phrase(rival, [best, rival])
    return plan_phrase(rival, [best, rival])


def base_phrase(best: Measurement, base: Plan) -> str:
    """The plan that a gain is relative to."""
    plan = best.plan
    bare = with_layers_of(replace(plan, tile=base.tile, backward=base.backward, mesh=base.mesh), base)
    if bare == base:
        if (apart := words_of_layers_apart([base])) != words_of_layers_apart([plan]) and apart:
            return apart
        parts = ["mesh"] * (plan.mesh != base.mesh)
        parts += ["tiles"] * (replace(plan, mesh=base.mesh) != base)
        return f"the same scheme with its default {' and '.join(parts) or 'options'}"
    other_mesh = base.scheme == plan.scheme and base.mesh != plan.mesh
    return scheme_phrase(base) + f" on a mesh of {mesh_words(base)}" * other_mesh


def scheme_phrase(plan: Plan) -> str:
    """A scheme and its layout in words: "striped ring attention"."""
    scheme = schemes[plan.scheme]
    title = scheme.title or plan.scheme.replace("_", " ")
    return f"{plan.layout} {title}" if scheme.layouts is None or len(scheme.layouts) > 1 else title


def plan_phrase(m: Measurement, others: Iterable[Measurement]) -> str:
    """Describe a plan in words: tiles, mesh, and the options in which it differs from others."""
    return equal_plans_phrase([m], others)


def equal_plans_phrase(equals: Sequence[Measurement], others: Iterable[Measurement]) -> str:
    """Plans that cannot be distinguished, in words that name their common parts once."""
    plans = [m.plan for m in equals]
    if len({plan.scheme for plan in plans}) > 1:
        return or_list(map(scheme_phrase, plans))
    flags = or_list(flags_text(m.flags).strip() for m in equals)
    differences = differences_in_words(plans, [m.plan for m in others])
    return " ".join([schemes_phrase(plans), *differences, *[f"and {flags}"] * bool(flags)])


def differences_in_words(plans: Sequence[Plan], rivals: Sequence[Plan]) -> Iterator[str]:
    """The parts of plans of one scheme, each in words: the tiles, and every other part in which the rivals differ."""

    def differ(part: Callable[[Plan], Hashable]) -> bool:
        return len(set(map(part, rivals))) > 1

    if differ(lambda plan: plan.kernel):
        yield f"with the {or_list(plan.kernel for plan in plans)} kernel"
    if tiles := or_list(tile_words(plan.tile) for plan in plans if plan.tile):
        backward = {plan.backward for plan in plans if plan.backward and plan.backward != plan.tile}
        also = f" ({tile_words(backward.pop())} in the backward pass)" if len(backward) == 1 else ""
        yield f"with tiles of {tiles}{also}"
    windows = any(plan.sliding for plan in plans)
    if (windows or differ(lambda plan: words_of_layers_apart([plan]))) and (apart := words_of_layers_apart(plans)):
        yield f"and {apart}"
    if len({plan.mesh for plan in (*rivals, *plans) if plan.scheme == plans[0].scheme}) > 1:
        yield f"on a mesh of {or_list(map(mesh_words, plans))}"
    if differ(options_words) and (options := or_list(map(options_words, plans))):
        yield f"and {options}"


def schemes_phrase(plans: Sequence[Plan]) -> str:
    """Names of schemes and layouts; one scheme in several layouts is named once."""
    by_scheme: dict[str, list[Plan]] = {}
    for plan in plans:
        by_scheme.setdefault(plan.scheme, []).append(plan)
    names = list[str]()
    for members in by_scheme.values():
        phrase = scheme_phrase(members[0])
        first, layouts = members[0].layout, or_list(plan.layout for plan in members)
        names.append(phrase.replace(first, layouts, 1) if phrase.startswith(first) else phrase)
    return or_list(names)


def tile_words(tile: Tile) -> str:
    """Queries by keys, and by the keys that are multiplied at once where the tile names them."""
    return str(tile).replace("x", " x ")


def words_of_layers_apart(plans: Sequence[Plan]) -> str:
    """Schemes and layouts of the layers that plans name apart: softmax layers, and layers with shorter windows where
    their scheme is another; empty where there are none."""
    softmax = [plan.for_attention("softmax") for plan in plans if plan.softmax]
    others = [plan.for_attention("softmax") if plan.softmax else plan for plan in plans]
    windows = [each.for_windows() for each in others if each.sliding and each.sliding.scheme != each.scheme]
    apart = {"softmax": softmax, "sliding": windows}
    return " and ".join(f"{schemes_phrase(own)} in {LAYERS_APART[part]}" for part, own in apart.items() if own)


def with_layers_of(plan: Plan, other: Plan) -> Plan:
    """The plan, with the layers apart of another plan."""
    return replace(plan, softmax=other.softmax, sliding=other.sliding)


def mesh_words(plan: Plan) -> str:
    return ", ".join(f"{axis}={size}" for axis, size in plan.axes.items()) or "one device"


def options_words(plan: Plan) -> str:
    """Options that differ from their defaults."""
    return ", ".join(plan.changed_options)


def or_list(words: Iterable[str]) -> str:
    """Different names with "or" before the last; of many names the first, and the number of others; empty without a
    name."""
    names = list(dict.fromkeys(filter(None, words)))
    if len(names) > MAX_NAMES:
        return f"{names[0]} or one of {len(names) - 1} others"
    return " or ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def why_above_bound(bound: ReachedBound) -> str | None:
    """Why a gain is larger than its bound; None where it is not."""
    if (bound.reached or 0.0) <= ABOVE_BOUND:
        return None
    return "above its bound, which counts all tiles as equally expensive and no waiting for hops"
