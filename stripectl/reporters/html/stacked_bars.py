"""A bar a plan in parts, its name above it: what its memory holds; a rule for what a device has.

Parts are told by colour and, in the table beside, by name.
"""

from collections.abc import Mapping
from typing import Any

import altair as alt

from stripectl.reporters.html.charts import COLOURS, INK, WIDTH, svg

BAR_PIXELS = 40  # pixels of a bar and its name


def draw(chart: Mapping[str, Any]) -> str:
    """SVG. `segments` are {order, name, part, low, high} in the unit of `axis`; `parts` their names in order; `rule` is
    {value, words} or None."""
    base = alt.Chart(alt.Data(values=chart["segments"])).encode(
        y=alt.Y("order:O", axis=None, scale=alt.Scale(paddingInner=0, paddingOuter=0))
    )
    axis = alt.Axis(tickCount=5, labelFlush=False)
    colour = alt.Color(
        "part:N",
        title=None,
        scale=alt.Scale(domain=chart["parts"], range=list(COLOURS)),
        legend=alt.Legend(orient="bottom", columns=3),
    )
    bars = base.mark_bar(height=12, yOffset=9).encode(
        x=alt.X("low:Q", title=chart["axis"], scale=alt.Scale(zero=True), axis=axis), x2="high:Q", color=colour
    )
    first = base.transform_filter("datum.low == 0")
    names = first.mark_text(dy=-8, fontSize=11, align="left", x=0, color=INK, limit=0).encode(text="name:N")
    layers = [bars, names]
    if chart["rule"]:
        limit = alt.Chart(alt.Data(values=[chart["rule"]])).encode(x=alt.X("value:Q"))
        layers.append(limit.mark_rule(color=INK, strokeWidth=1.5, strokeDash=[6, 2]))
    return svg(alt.layer(*layers).properties(width=WIDTH, height=alt.Step(BAR_PIXELS)))
