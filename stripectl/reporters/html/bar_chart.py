"""A bar per plan from zero, with its name above and its value at the end; its interval as a line; a rule for a limit.

A measured bar is solid and a predicted bar pale, and the mark at its end has the method's shape. Where a plan was both
measured and predicted, the prediction is a mark in the same row. The answer has the accent colour.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from stripectl.reporters.cells import MARKS, spread_cell
from stripectl.reporters.html.charts import (
    COLOURS,
    INK,
    QUIET,
    Channel,
    Chart,
    ChartLayer,
    ChartRow,
    channel,
    either,
    layered,
    plot,
    svg,
    tip,
    tip_channel,
)
from stripectl.results.labels import METHOD_WORDS, plan_label
from stripectl.results.measurement import Measurement
from stripectl.util.files import utf8

BAR_PIXELS, MAX_BAR_PIXELS = 40, 64  # of a bar and the name above it
NAME_PIXELS = 26  # of the name, and between bars
MIDDLE = NAME_PIXELS / 2 - 2  # of a bar below the middle of its row, whose upper part has the name
RAN = "datum.method == 'measured'"
VALUE_PIXELS = 104  # of the text at the end of a bar


def bar(
    order: int,
    name: str,
    m: Measurement,
    value: float,
    words: str,
    ends: Sequence[float] | None = None,
    best: bool = False,
    predicted: float | None = None,
) -> ChartRow:
    """A bar of a chart; `ends` are the ends of its interval, `predicted` is a prediction for the same plan."""
    low, high = ends or (None, None)
    mark = MARKS.get(m.method, "?")
    return {
        "order": order,
        "name": utf8(name),
        "words": utf8(f"{words} {mark}"),
        "tip": tip(f"{plan_label(m)}: {words} {mark} {METHOD_WORDS.get(m.method, m.method)} on {m.target}"),
        "method": utf8(m.method),
        "value": value,
        "end": max(value, high or 0.0),
        "low": low,
        "high": high,
        "best": best,
        "predicted": predicted,
    }


def time_bar(order: int, m: Measurement, size: float, name: str = "", **given: Any) -> ChartRow:
    """The bar of a time, in a unit of `size` seconds."""
    ends = [end / size for end in m.ci95_s] if m.ci95_s else None
    return bar(order, name or plan_label(m), m, (m.median_s or 0.0) / size, spread_cell(m), ends, **given)


def draw(chart: Chart, width: int) -> str:
    """SVG. `bars` are as from `bar`, in the unit of `axis`; `rule` is {value, words} or None; few bars are as thick as
    `tall` pixels allow, where it is given."""
    bars, rule = chart["bars"], chart["rule"]
    step = min(MAX_BAR_PIXELS, max(BAR_PIXELS, chart.get("tall", 0) // max(len(bars), 1)))
    values: list[float] = [each[name] or 0.0 for each in bars for name in ("value", "high", "predicted")]
    values += [rule["value"]] if rule else []
    ends = [0.0, max(values, default=0.0) * 1.02 or 1.0]
    axis = {"tickCount": 5, "labelFlush": False}
    value = channel("value:Q", title=chart["axis"], scale={"domain": ends, "nice": False}, axis=axis)
    base = plot(bars).encode(y=channel("order:O", axis=None, scale={"paddingInner": 0, "paddingOuter": 0}))
    layers = [*_boxes(base, value, step), *_texts(base, width, step), *(_rule(rule, ends[1]) if rule else ())]
    return svg(layered(layers, width - VALUE_PIXELS, {"step": step}))


def _boxes(base: ChartLayer, value: Channel, step: int) -> Iterator[ChartLayer]:
    """Bars, faint with a line at the end where times are predicted, with intervals and predictions."""
    thick = step - NAME_PIXELS
    ink = either("datum.best", COLOURS[0], QUIET)
    full = either(RAN, 1, 0.5)
    boxes = base.mark("bar", height=thick, yOffset=MIDDLE)
    yield boxes.encode(x=value, color=ink, fillOpacity=full, description=tip_channel())
    ends = base.where(f"!({RAN})").mark("tick", yOffset=MIDDLE, height=thick, thickness=2.5)
    yield ends.encode(x=value, color=ink)
    known, twins = base.where("isValid(datum.low)"), base.where("isValid(datum.predicted)")
    intervals = known.mark("rule", yOffset=MIDDLE, strokeWidth=1.5, color=INK)
    yield intervals.encode(x=channel("low:Q"), x2={"field": "high"})
    diamonds = twins.mark("point", yOffset=MIDDLE, size=70, strokeWidth=1.8, shape="diamond", color=INK, opacity=1)
    yield diamonds.encode(x=channel("predicted:Q"))


def _texts(base: ChartLayer, width: int, step: int) -> Iterator[ChartLayer]:
    """The names above the bars, the best in bold, and the words at their ends."""
    text = {"align": "left", "x": 0, "color": INK, "limit": width}
    above = NAME_PIXELS / 2 + 1 - step / 2
    bold = base.mark("text", dy=above, fontSize=12, **text, fontWeight="bold")
    yield bold.where("datum.best").encode(text=channel("name:N"))
    yield base.mark("text", dy=above, fontSize=12, **text).where("!datum.best").encode(text=channel("name:N"))
    words = base.mark("text", yOffset=MIDDLE, dx=7, align="left", fontSize=12, color=INK)
    yield words.encode(x=channel("end:Q"), text=channel("words:N"))


def _rule(rule: ChartRow, end: float) -> Iterator[ChartLayer]:
    """A value that applies to all bars, with its words above the first bar, on the side where there is room."""
    limit = plot([rule]).encode(x=channel("value:Q"))
    yield limit.mark("rule", color=COLOURS[1], strokeWidth=2, strokeDash=[6, 3])
    far = rule["value"] > 0.55 * end
    side = {"align": "right", "dx": -5} if far else {"align": "left", "dx": 5}
    yield limit.mark("text", y=-8, fontSize=12, color=INK, **side).encode(text=channel("words:N"))
