"""A bar per plan in parts, with its name above: the parts of its memory; a rule for the memory of a device.

Parts differ in colour, and the table has their names.
"""

from stripectl.reporters.html.charts import COLOURS, INK, Chart, channel, layered, plot, svg, tip_channel

BAR_PIXELS = 40  # pixels of a bar and its name


def draw(chart: Chart, width: int) -> str:
    """SVG. `segments` are {order, name, part, low, high} in the unit of `axis`; `parts` are their names in order;
    `rule` is {value, words} or None."""
    base = plot(chart["segments"]).encode(y=channel("order:O", axis=None, scale={"paddingInner": 0, "paddingOuter": 0}))
    axis = {"tickCount": 5, "labelFlush": False}
    colour = channel(
        "part:N",
        title=None,
        scale={"domain": chart["parts"], "range": list(COLOURS)},
        legend={"orient": "bottom", "columns": max(2, width // 160)},
    )
    bars = base.mark("bar", height=14, yOffset=9).encode(
        x=channel("low:Q", title=chart["axis"], scale={"zero": True}, axis=axis),
        x2={"field": "high"},
        color=colour,
        description=tip_channel(),
    )
    first = base.where("datum.low == 0")
    names = first.mark("text", dy=-8, fontSize=12, align="left", x=0, color=INK, limit=0).encode(text=channel("name:N"))
    layers = [bars, names]
    if chart["rule"]:
        limit = plot([chart["rule"]]).encode(x=channel("value:Q"))
        layers.append(limit.mark("rule", color=COLOURS[1], strokeWidth=2, strokeDash=[6, 3]))
    return svg(layered(layers, width - 40, {"step": BAR_PIXELS}))
