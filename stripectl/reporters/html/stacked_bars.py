"""A bar per plan in parts, with its name above: the parts of its memory; a rule for the memory of a device.

Parts differ in colour, and the table has their names.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from stripectl.reporters.html.charts import Rule
from stripectl.reporters.html.vega_lite import draw_file


class Segment(NamedTuple):
    """A part of the bar with this order and name, from `low` to `high` on the axis."""

    order: int
    name: str
    part: str
    low: float
    high: float
    tip: str


@dataclass(frozen=True)
class StackedBars:
    """Bars in the unit of `axis`; `parts` are the names of their parts in order."""

    segments: Sequence[Segment]
    parts: Sequence[str]
    axis: str
    rules: Sequence[Rule]
    kind: ClassVar = "stack"

    def draw(self, width: int) -> str:
        data = {"segments": self.segments, "rules": self.rules}
        size = {"width": width - 40, "height": {"step": 40}}
        columns = max(2, width // 160)
        return draw_file("stacked_bars", data, size, title=self.axis, parts=self.parts, columns=columns)
