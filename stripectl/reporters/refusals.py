"""Plans without a time, grouped where they were refused for one reason; every reporter shows the same."""

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from stripectl.results.measurement import Measurement
from stripectl.results.measurement_set import refusals_and_failures
from stripectl.util.units import plural

MAX_REFUSED_ROWS = 3  # refused plans that have a row and a line each
NO_AXIS = re.compile(r"(?P<scheme>\w+) has no axis (?P<axis>\w+);")  # a combination of a grid that is not a plan


class Refusals(NamedTuple):
    """Plans without a time: single plans, and groups that were refused for one reason."""

    alone: list[Measurement]
    groups: list[list[Measurement]]

    def others(self, members: Iterable[Measurement]) -> list[Measurement]:
        """The members that have their own row."""
        together = {m.key for those in self.groups for m in those}
        return [m for m in members if m.key not in together]


def refusals(members: Iterable[Measurement]) -> Refusals:
    """The plans of a table that have no time, grouped where their reasons differ only in numbers."""
    same = [those for those in refusals_and_failures(members) if those[0].status == "refused"]
    many = [those for those in same if len(those) > MAX_REFUSED_ROWS and not NO_AXIS.match(those[0].reason or "")]
    no_axis = [m for those in same if NO_AXIS.match(those[0].reason or "") for m in those]
    together = {m.key for those in (*many, no_axis) for m in those}
    alone = [m for m in members if m.status != "ok" and m.key not in together]
    return Refusals(alone, [*many, *([no_axis] if no_axis else [])])


def refusal_texts(told: Refusals) -> list[tuple[str, str]]:
    """(status, text) for each plan and its reason, or group of plans."""
    by_reason: dict[tuple[str, str, str | None], dict[str, None]] = {}
    for m in told.alone:
        by_reason.setdefault((m.status, str(m.plan), m.reason), {})[m.workload.passes] = None
    alone = [(status, f"{plan} {', '.join(passes)}: {why}") for (status, plan, why), passes in by_reason.items()]
    return [*alone, *(("refused", refused_group(those)) for those in told.groups)]


def refused_group(those: Sequence[Measurement]) -> str:
    """Plans that were refused for one reason; combinations of a grid without such an axis, by scheme and axis."""
    lacking = [NO_AXIS.match(m.reason or "") for m in those]
    if not all(lacking):
        return f"{refused_alike(those)} {those[0].workload.passes}: {those[0].reason}"
    pairs = dict.fromkeys(f"{found['scheme']} on {found['axis']}" for found in lacking if found)
    return f"{plural(len(those), 'combination')} of schemes and meshes that do not exist: {', '.join(pairs)}"


def refused_alike(those: Sequence[Measurement]) -> str:
    """Plans that were refused for one reason, named by the first of them."""
    return f"{plural(len(those), 'plan')}, for example {those[0].plan}"
