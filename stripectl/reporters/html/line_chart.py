"""Lines over the sequence length, one per plan: the length is logarithmic, the values linear or logarithmic.

Series differ in colour and shape. Measured values have solid marks and a solid line; the rest is hollow and dashed.
Bounds are dotted, limits are dashed rules with a text.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from stripectl.reporters.html.charts import NARROW, PANEL, Rule
from stripectl.reporters.html.vega_lite import filled, svg

MAX_TICKS = 8
LEGEND_COLUMN = 300  # pixels of a name in the legend


class CurvePoint(NamedTuple):
    """A value of a series at a length, with its interval."""

    tokens: int
    value: float
    series: str
    method: str
    tip: str
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Curves:
    """Lines in the unit of `axis`: `series` are their names in the order of their colours, `dotted` are bounds,
    `crosses` refused plans, `stars` published values. `focus` is the series that is the answer, `domain` the range of
    values where charts share it, and `tall` the pixels of a wide drawing."""

    series: Sequence[str]
    points: Sequence[CurvePoint]
    axis: str
    dotted: Sequence[CurvePoint] = ()
    crosses: Sequence[CurvePoint] = ()
    stars: Sequence[CurvePoint] = ()
    rules: Sequence[Rule] = ()
    logarithmic: bool = False
    focus: str = ""
    domain: tuple[float, float] | None = None
    tall: int = 300
    kind: ClassVar = "curves"

    @property
    def values(self) -> list[float]:
        """All values that the vertical axis must hold."""
        marks = [*self.points, *self.dotted, *self.crosses, *self.stars]
        ends = [end for mark in marks for end in (mark.value, mark.low, mark.high) if end is not None]
        return ends + [rule.value for rule in self.rules]

    def draw(self, width: int) -> str:
        marks = [*self.points, *self.crosses, *self.stars]
        lengths = sorted({mark.tokens for mark in marks})
        long = max(map(len, self.series), default=0) > 24
        columns = max(1, min(len(self.series), width // LEGEND_COLUMN)) if long else 2
        form = filled(
            "curves",
            {name: getattr(self, name) for name in ("points", "dotted", "crosses", "stars", "rules")},
            title=self.axis,
            lengths=[lengths[0], lengths[-1]],
            ticks=lengths[:: -(-len(lengths) // (MAX_TICKS if width > NARROW else MAX_TICKS // 2))],
            ends=self.domain or (min(self.values), max(self.values)),
            series=self.series,
            focus=self.focus,
            columns=columns,
            name_pixels=width // columns - 30,
        )
        form["encoding"]["y"]["scale"]["type"] = "log" if self.logarithmic else "linear"  # no parameter sets a type
        tall = self.tall if width > PANEL else 240 if width == PANEL else 220
        return svg({**form, "width": width - 56, "height": tall})
