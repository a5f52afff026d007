"""A bar per plan from zero, with its name above and its value at the end; its interval as a line; a rule for a limit.

A measured bar is solid and a predicted bar pale, and the mark at its end has the method's shape. Where a plan was both
measured and predicted, the prediction is a mark in the same row. The answer has the accent colour.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from stripectl.reporters.cells import MARKS, spread_cell
from stripectl.reporters.html.charts import Rule
from stripectl.reporters.html.vega_lite import draw_file, tip
from stripectl.results.labels import METHOD_WORDS, plan_label
from stripectl.results.measurement import Measurement
from stripectl.util.files import utf8

BAR_PIXELS, MAX_BAR_PIXELS = 40, 64  # of a bar and the name above it
VALUE_PIXELS = 104  # of the text at the end of a bar


class Bar(NamedTuple):
    """A bar from zero to `value`, with `words` at its end; `predicted` is a prediction for the same plan."""

    order: int
    name: str
    words: str
    tip: str
    method: str
    value: float
    end: float
    low: float | None
    high: float | None
    best: bool
    predicted: float | None


@dataclass(frozen=True)
class Bars:
    """Bars in the unit of `axis`. Few bars are as thick as `tall` pixels allow."""

    bars: Sequence[Bar]
    axis: str
    rules: Sequence[Rule] = ()
    tall: int = 0
    kind: ClassVar = "bars"

    def draw(self, width: int) -> str:
        step = min(MAX_BAR_PIXELS, max(BAR_PIXELS, self.tall // max(len(self.bars), 1)))
        values = [each or 0.0 for bar in self.bars for each in (bar.end, bar.predicted)]
        most = max([*values, *(rule.value for rule in self.rules)], default=0.0) * 1.02 or 1.0
        data, size = {"bars": self.bars, "rules": self.rules}, {"width": width - VALUE_PIXELS, "height": {"step": step}}
        return draw_file("bars", data, size, title=self.axis, ends=[0.0, most], step=step)


def bar(
    order: int,
    name: str,
    m: Measurement,
    value: float,
    words: str,
    ends: Sequence[float] | None = None,
    best: bool = False,
    predicted: float | None = None,
) -> Bar:
    """The bar of a measurement; `ends` are the ends of its interval."""
    low, high = ends or (None, None)
    mark = MARKS.get(m.method, "?")
    return Bar(
        order=order,
        name=utf8(name),
        words=utf8(f"{words} {mark}"),
        tip=tip(f"{plan_label(m)}: {words} {mark} {METHOD_WORDS.get(m.method, m.method)} on {m.target}"),
        method=utf8(m.method),
        value=value,
        end=max(value, high or 0.0),
        low=low,
        high=high,
        best=best,
        predicted=predicted,
    )


def time_bar(order: int, m: Measurement, size: float, name: str = "", **given: Any) -> Bar:
    """The bar of a time, in a unit of `size` seconds."""
    ends = [end / size for end in m.ci95_s] if m.ci95_s else None
    return bar(order, name or plan_label(m), m, (m.median_s or 0.0) / size, spread_cell(m), ends, **given)
