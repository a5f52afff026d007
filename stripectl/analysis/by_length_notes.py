"""Sentences about schemes at several lengths: the cells that a stronger method could change, and why plans have no
time."""

from collections.abc import Mapping, Sequence

from stripectl.analysis.by_length import LengthResult, SchemesByLength
from stripectl.core.lengths import format_length
from stripectl.core.plan import UNSHARDED
from stripectl.results.measurement import Measurement
from stripectl.util.units import NOTHING, plural, times

MAX_REASON_CHARACTERS = 100  # characters of a reason
WHOLE = f"{UNSHARDED}: each sequence stays on one device; devices share only batch and heads"


def by_length_notes(contest: SchemesByLength) -> list[str]:
    """The row that is not a scheme, methods that are weaker than the strongest, and why plans have no time: by scheme,
    and for all schemes together."""
    said, (strongest, *weaker) = [WHOLE] * (UNSHARDED in contest.schemes), contest.methods
    for method in weaker:
        said.append(
            f"a plan that is only {method} may be slower when it is {strongest}; to do this for the best plan of every "
            f"scheme, try --mesh auto --refine {len(contest.schemes)}"
        )
    for scheme in contest.schemes:
        cells = {each.seq_len: each.cells.get(scheme) for each in contest.lengths}
        lacking = {seq_len: cell.refused for seq_len, cell in cells.items() if cell and cell.best is None}
        said += [f"{scheme} has no time at {where}: {why}" for why, where in _alike(lacking).items()]
    refused = {each.seq_len: each.refused for each in contest.lengths if each.refused}
    return said + [f"refused at {where}: {why}" for why, where in _alike(refused).items()]


def _alike(refused: Mapping[int, Sequence[Sequence[Measurement]]]) -> dict[str, str]:
    """The lengths at which plans have no time for the same reason, by reason."""
    found: dict[str, list[str]] = {}
    for seq_len, groups in refused.items():
        found.setdefault(why_no_time(groups), []).append(format_length(seq_len))
    return {why: ", ".join(lengths) for why, lengths in found.items()}


def why_no_time(groups: Sequence[Sequence[Measurement]]) -> str:
    """The number of plans without a time, and the first reason."""
    if not groups:
        return NOTHING
    count, reason = sum(map(len, groups)), groups[0][0].reason
    fact = reason.fact if reason else "no reason was given"
    first = fact.partition(" :: ")[0].split(". ")[0].rstrip(".")
    if len(first) > MAX_REASON_CHARACTERS:
        first = first[: MAX_REASON_CHARACTERS - 1] + "…"
    text = f"{plural(count, 'plan')}, {first}"
    others = len(groups) - 1
    return text + (f", and {plural(others, 'other reason')}" if others else "")


def margin_phrase(length: LengthResult) -> str:
    """How much longer the next scheme takes than the winner; empty where no other scheme has a time."""
    name = length.runner_up
    if name is None or (ratio := length.cells[name].ratio) is None:
        return ""
    return f"{ratio - 1:.1%} ahead of {name}{', too close' if length.cells[name].close else ''}"


def standing(length: LengthResult, scheme: str) -> str:
    """A scheme compared with the winner: best, its time over the winner's, or why it has no time, in a word."""
    cell = length.cells.get(scheme)
    if cell is None or cell.best is None:
        return cell.refused[0][0].status if cell and cell.refused else NOTHING
    return "best" if scheme == length.winner else times(cell.ratio) + " tie" * cell.close
