"""Lines over the sequence length, one per plan: the length is logarithmic, the values linear or logarithmic.

Series differ in colour and shape. Measured values have solid marks and a solid line; the rest is hollow and dashed.
Bounds are dotted, limits are dashed rules with a text.
"""

import json
from collections.abc import Iterator, Sequence

from stripectl.reporters.html.charts import (
    COLOURS,
    FONT_SIZE,
    INK,
    NARROW,
    PANEL,
    SHAPES,
    Channel,
    Chart,
    ChartLayer,
    ChartRow,
    channel,
    either,
    layered,
    plot,
    svg,
    tip_channel,
)

MAX_SERIES = len(COLOURS)
MAX_TICKS = 8
RAN = "datum.method == 'measured'"
LEGEND_COLUMN = 300  # pixels of a name in the legend
# Tokens in the papers' notation, in units of 1024.
TOKENS = (
    "datum.value >= 1048576 ? format(datum.value / 1048576, '~g') + 'M' : "
    "datum.value >= 1024 ? format(datum.value / 1024, '~g') + 'k' : format(datum.value, '~g')"
)


def draw(chart: Chart, width: int) -> str:
    """SVG. `points` are {tokens, value, series, method, low, high, tip}, `series` has their names in the order of their
    colours, `dotted` {tokens, value, series} are bounds, `crosses` {tokens, value, series} are refused plans, `stars`
    {tokens, value} are published values, and `rules` {value, words} apply to every length. `log` selects the scale of
    values, `domain` their range, `focus` the series that is the answer, and `tall` the pixels of a wide drawing."""
    across, up = _axes(chart, width)
    colour, shape = _series_channels(chart["series"], width)

    def of(rows: Sequence[ChartRow]) -> ChartLayer:
        return plot(rows).encode(x=across)

    points, crosses = (of(chart[kind]).encode(y=up, color=colour) for kind in ("points", "crosses"))
    layers = [*_curves(points, chart.get("focus") or "")]
    dotted = of(chart["dotted"]).encode(y=up, color=colour)
    layers.append(dotted.mark("line", strokeWidth=1.5, strokeDash=[1, 3]))
    if chart["dotted"]:
        last = max(chart["dotted"], key=lambda row: (row["tokens"], row["value"]))
        named = {"align": "right", "baseline": "bottom", "dy": -5, "fontSize": FONT_SIZE, "color": INK}
        layers.append(of([last | {"words": "bound"}]).mark("text", **named).encode(y=up, text=channel("words:N")))
    layers += _points(points, colour, shape)
    layers.append(crosses.mark("point", size=55, strokeWidth=1.5).encode(shape=shape))
    layers.append(crosses.mark("text", text="✕", fontSize=13, fontWeight="bold"))
    layers.append(of(chart["stars"]).encode(y=up).mark("text", text="★", fontSize=14, color=INK))
    for rule in chart["rules"]:
        layers += _rule(rule, up)
    tall = chart.get("tall", 300) if width > PANEL else 240 if width == PANEL else 220
    return svg(layered(layers, width - 56, tall))


def _axes(chart: Chart, width: int) -> tuple[Channel, Channel]:
    """The axis of lengths, with as many of them as fit, and the axis of values."""
    lengths = sorted({each["tokens"] for kind in ("points", "crosses", "stars") for each in chart[kind]})
    ticks = lengths[:: -(-len(lengths) // (MAX_TICKS if width > NARROW else MAX_TICKS // 2))]
    axis = {
        "values": ticks,
        "labelExpr": TOKENS,
        "grid": False,
        "labelFlush": False,
        "labelOverlap": "greedy",
        "labelSeparation": 6,
    }
    scale = {"type": "log", "base": 2, "domain": [lengths[0] / 1.15, lengths[-1] * 1.15], "nice": False}
    across = channel("tokens:Q", title="sequence length (tokens)", axis=axis, scale=scale)
    ends = {"domain": chart["domain"]} if chart.get("domain") else {}
    scale = {"type": "log", "nice": True} if chart["log"] else {"zero": False, "nice": True, **ends}
    axis = {"tickCount": 5, "labelFlush": False, "grid": True}
    return across, channel("value:Q", title=chart["axis"], scale=scale, axis=axis)


def _series_channels(series: Sequence[str], width: int) -> tuple[Channel, Channel]:
    """The colour and the shape of each series, with one legend for both."""
    columns = max(1, min(len(series), width // LEGEND_COLUMN)) if max(map(len, series), default=0) > 24 else 2
    legend = {
        "title": None,
        "orient": "bottom",
        "columns": columns,
        "labelLimit": width // columns - 30,
        "symbolFillColor": "transparent",
        "symbolSize": 70,
        "rowPadding": 4,
        "columnPadding": 24,
    }
    colours, shapes = ({"domain": series, "range": list(of[: len(series)])} for of in (COLOURS, SHAPES))
    return channel("series:N", scale=colours, legend=legend), channel("series:N", scale=shapes, legend=legend)


def _curves(points: ChartLayer, focus: str) -> Iterator[ChartLayer]:
    """Lines through the points: solid where plans ran, dashed where times are predicted, and broad for the answer."""
    broad = either(f"datum.series == {json.dumps(focus)}", 3, 1.6)
    for when, dash in ((RAN, [1, 0]), (f"!({RAN})", [6, 3])):
        yield (points.where(when).mark("line", strokeDash=dash).encode(detail=channel("series:N"), strokeWidth=broad))


def _points(points: ChartLayer, colour: Channel, shape: Channel) -> Iterator[ChartLayer]:
    """Intervals and points: full where plans ran, empty where times are predicted."""
    bars = points.where("isValid(datum.low)").mark("rule", strokeWidth=1.5)
    yield bars.encode(y=channel("low:Q"), y2={"field": "high"})
    fill = either(RAN, 1, 0)
    marks = points.mark("point", size=60, strokeWidth=1.8)
    yield marks.encode(shape=shape, fill=colour, fillOpacity=fill, description=tip_channel())


def _rule(rule: ChartRow, up: Channel) -> Iterator[ChartLayer]:
    """A value that applies to every length, with its words."""
    line = plot([rule]).encode(y=up)
    yield line.mark("rule", color=INK, strokeWidth=1.5, strokeDash=[6, 2], opacity=0.7)
    text = {"align": "left", "baseline": "bottom", "dy": -3, "fontSize": FONT_SIZE, "color": INK}
    yield line.mark("text", x=4, **text).encode(text=channel("words:N"))
