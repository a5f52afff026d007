"""A bar a plan from zero, its name above it and its interval a line; a rule for what may not be passed.

The method is told by colour, shape and word: what ran on devices has a full bar, the rest an empty, dashed one.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt

from stripectl.reporters.html.charts import INK, METHOD_COLOURS, METHOD_SHAPES, WIDTH, method_channel, svg
from stripectl.reporters.terminal.tables import MARKS, METHOD_WORDS, spread_cell
from stripectl.results.labels import plan_label
from stripectl.results.measurement import Measurement
from stripectl.util.files import utf8

BAR_PIXELS = 54  # pixels of a bar and the words above it


def bar(
    order: int, name: str, m: Measurement, value: float, words: str, ends: Sequence[float] | None = None
) -> dict[str, Any]:
    """One of a chart's bars; `ends` are those of its interval."""
    low, high = ends or (None, None)
    said = {"name": utf8(name), "words": utf8(f"{MARKS.get(m.method, '?')} {words}"), "method": utf8(m.method)}
    return {"order": order, **said, "value": value, "low": low, "high": high}


def time_bar(order: int, m: Measurement, size: float, name: str = "", also: str = "") -> dict[str, Any]:
    """The bar of a time, in a unit of so many seconds."""
    words = f"{METHOD_WORDS.get(m.method, m.method)}, {m.target}{also}: {spread_cell(m)}"
    ends = [end / size for end in m.ci95_s] if m.ci95_s else None
    return bar(order, name or plan_label(m), m, (m.median_s or 0.0) / size, words, ends)


def draw(chart: Mapping[str, Any]) -> str:
    """SVG. `bars` are {order, name, words, method, value, low, high} in the unit of `axis`; `rule` is {value, words} or
    None."""
    base = alt.Chart(alt.Data(values=chart["bars"])).encode(
        y=alt.Y("order:O", axis=None, scale=alt.Scale(paddingInner=0, paddingOuter=0))
    )
    axis = alt.Axis(tickCount=5, labelFlush=False)
    value = alt.X("value:Q", title=chart["axis"], scale=alt.Scale(zero=True), axis=axis)
    ran = "datum.method == 'measured'"
    bars = base.mark_bar(height=9, yOffset=17, strokeWidth=1.2).encode(
        x=value,
        color=method_channel(alt.Color, METHOD_COLOURS),
        stroke=method_channel(alt.Stroke, METHOD_COLOURS),
        fillOpacity=alt.condition(ran, alt.value(0.45), alt.value(0.0)),
        strokeDash=alt.condition(ran, alt.value([1, 0]), alt.value([4, 3])),
    )
    ends = base.mark_point(yOffset=17, size=45, strokeWidth=1.5).encode(
        x=value,
        color=method_channel(alt.Color, METHOD_COLOURS),
        fill=method_channel(alt.Fill, METHOD_COLOURS),
        fillOpacity=alt.condition(ran, alt.value(1), alt.value(0)),
        shape=method_channel(alt.Shape, METHOD_SHAPES),
    )
    known = base.transform_filter("isValid(datum.low)")
    interval = known.mark_rule(yOffset=17, strokeWidth=1.5, color=INK).encode(x=alt.X("low:Q"), x2="high:Q")
    text: dict[str, Any] = {"align": "left", "x": 0, "color": INK, "limit": 0}
    names = base.mark_text(dy=-13, fontSize=11, **text).encode(text="name:N")
    words = base.mark_text(dy=2, fontSize=11, opacity=0.8, **text).encode(text="words:N")
    layers = [bars, interval, ends, names, words]
    if chart["rule"]:
        limit = alt.Chart(alt.Data(values=[chart["rule"]])).encode(x=alt.X("value:Q"))
        layers.append(limit.mark_rule(color=INK, strokeWidth=1.5, strokeDash=[6, 2]))
    return svg(alt.layer(*layers).properties(width=WIDTH, height=alt.Step(BAR_PIXELS)))
