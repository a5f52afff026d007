"""Plans without a time, grouped where they were refused for one reason; every reporter shows the same."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from stripectl.core.layer_groups import layer_groups
from stripectl.core.reason import ReasonKind
from stripectl.core.validation import unused_axes
from stripectl.results.measurement import Measurement
from stripectl.results.measurement_set import refusals_and_failures
from stripectl.util.units import plural

MAX_REFUSED_ROWS = 3  # refused plans that have a row and a line each


class Refusals(NamedTuple):
    """Plans without a time: single plans, and groups that were refused for one reason."""

    alone: list[Measurement]
    groups: list[list[Measurement]]

    def others(self, members: Iterable[Measurement]) -> list[Measurement]:
        """The members that have their own row."""
        together = {m.key for those in self.groups for m in those}
        return [m for m in members if m.key not in together]


def refusals(members: Iterable[Measurement]) -> Refusals:
    """Group the plans without a time whose reasons differ only in numbers."""
    same = [those for those in refusals_and_failures(members) if those[0].status == "refused"]
    many = [those for those in same if len(those) > MAX_REFUSED_ROWS and not lacks_axis(those[0])]
    no_axis = [m for those in same if lacks_axis(those[0]) for m in those]
    together = {m.key for those in (*many, no_axis) for m in those}
    alone = [m for m in members if m.status != "ok" and m.key not in together]
    return Refusals(alone, [*many, *([no_axis] if no_axis else [])])


def refusal_texts(told: Refusals) -> list[tuple[str, str]]:
    """(status, text) for each plan and its reason, or group of plans."""
    by_reason: dict[tuple[str, str, str], dict[str, None]] = {}
    for m in told.alone:
        by_reason.setdefault((m.status, str(m.plan), str(m.reason)), {})[m.workload.passes] = None
    alone = [(status, f"{plan} {', '.join(passes)}: {why}") for (status, plan, why), passes in by_reason.items()]
    return [*alone, *(("refused", refused_group(those)) for those in told.groups)]


def lacks_axis(m: Measurement) -> bool:
    """Whether a plan is a combination of a grid that does not exist: its scheme has no such axis."""
    return m.reason is not None and m.reason.kind == ReasonKind.NO_AXIS


def refused_group(those: Sequence[Measurement]) -> str:
    """Plans that were refused for one reason; combinations of a grid without such an axis, by scheme and axis."""
    if not all(map(lacks_axis, those)):
        return f"{refused_alike(those)} {those[0].workload.passes}: {those[0].reason}"
    pairs = dict.fromkeys(pair for m in those for pair in _schemes_without_axis(m))
    return f"{plural(len(those), 'combination')} of schemes and meshes that do not exist: {', '.join(pairs)}"


def _schemes_without_axis(m: Measurement) -> list[str]:
    """`ring on ulysses`: the first layers whose scheme does not use an axis of the mesh, and this axis."""
    plans = (each.plan for each in layer_groups(m.workload, m.plan))
    return [f"{plan.scheme} on {axis}" for plan in plans for axis in unused_axes(plan)][:1]


def refused_alike(those: Sequence[Measurement]) -> str:
    """Plans that were refused for one reason, named by the first of them."""
    return f"{plural(len(those), 'plan')}, for example {those[0].plan}"
