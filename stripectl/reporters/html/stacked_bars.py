"""A bar per plan in parts, with its name above: the parts of its memory; a rule for the memory of a device.

Parts differ in colour, and the table has their names.
"""

import altair as alt

from stripectl.reporters.html.charts import COLOURS, INK, Chart, layered, plot, svg, tip_channel

BAR_PIXELS = 40  # pixels of a bar and its name


def draw(chart: Chart, width: int) -> str:
    """SVG. `segments` are {order, name, part, low, high} in the unit of `axis`; `parts` are their names in order;
    `rule` is {value, words} or None."""
    base = plot(chart["segments"]).encode(
        y=alt.Y("order:O", axis=None, scale=alt.Scale(paddingInner=0, paddingOuter=0))
    )
    axis = alt.Axis(tickCount=5, labelFlush=False)
    colour = alt.Color(
        "part:N",
        title=None,
        scale=alt.Scale(domain=chart["parts"], range=list(COLOURS)),
        legend=alt.Legend(orient="bottom", columns=max(2, width // 160)),
    )
    bars = base.mark_bar(height=14, yOffset=9).encode(
        x=alt.X("low:Q", title=chart["axis"], scale=alt.Scale(zero=True), axis=axis),
        x2=alt.X2("high:Q"),
        color=colour,
        description=tip_channel(),
    )
    first = base.transform_filter("datum.low == 0")
    names = first.mark_text(dy=-8, fontSize=12, align="left", x=0, color=INK, limit=0).encode(text=alt.Text("name:N"))
    layers = [bars, names]
    if chart["rule"]:
        limit = plot([chart["rule"]]).encode(x=alt.X("value:Q"))
        layers.append(limit.mark_rule(color=COLOURS[1], strokeWidth=2, strokeDash=[6, 3]))
    return svg(layered(layers, width - 40, alt.Step(BAR_PIXELS)))
