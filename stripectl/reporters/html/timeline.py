"""The drawings of a profile: a step on every device, and the hidden and exposed parts of every hop.

A device has two lanes, compute above and transfers below. Both are filled where a transfer is hidden, only the lower
one where it is exposed; where the device waits for a slower device, the lower lane has a thin line. Colours show the
same.
"""

from collections.abc import Sequence
from typing import Any

from stripectl.reporters.html.charts import COLOURS as HUES
from stripectl.reporters.html.charts import INK, Chart, ChartLayer, ChartRow, channel, layered, plot, svg

COLOURS = dict(zip(("compute", "exposed", "hidden"), HUES, strict=False)) | {"skew": INK}
TALL, TEXT_AT, SMALL = 44, 7, 11  # pixels of a device, down to its name, of text
NAME_PIXELS = 90  # of the name of a device, right of which a label begins
CHARACTER, GAP = 6, 6  # pixels of a letter of a label, and left of a label
LANES = {  # by colour: the kinds of moments that are drawn, pixels down to the lane's middle, its width
    "compute": (("compute", "hidden"), 21, 11),
    "hidden": (("hidden",), 33, 11),
    "exposed": (("exposed",), 33, 11),
    "skew": (("skew",), 33, 1.5),
}
TRANSFERS = ("hidden", "exposed", "skew")  # the kinds in the lower lane of a device
PIXELS = 4  # the size of a Vega symbol whose path is in pixels
BARS_TALL, WIDEST_BAR = 220, 30
BARS = {"hidden": 0.5, "exposed": 1.0, "skew": 1.0}  # their width, and skew is hollow


def step_chart(chart: Chart, width: int) -> str:
    """SVG: the name of each device and below it its lanes, with time from left to right."""
    tall, wide = TALL * len(chart["lanes"]), width - 20
    axis = {"tickCount": 6, "labelFlush": True, "labelFontSize": SMALL, "titleFontSize": SMALL}
    time = {"domain": [0, chart["end"]], "nice": False}
    left = channel("x:Q", title=f"time ({chart['unit']})", axis=axis, scale=time)
    down = channel("y:Q", axis=None, scale={"domain": [tall, 0], "nice": False})
    layers = list[ChartLayer]()
    for kind, (kinds, middle, thick) in LANES.items():
        paths = (_path(lane["parts"], kinds, chart["end"], wide) for lane in chart["lanes"])
        rows = [{"x": 0, "y": at * TALL + middle, "path": path} for at, path in enumerate(paths) if path]
        look = {"filled": False, "color": COLOURS[kind], "strokeWidth": thick, "opacity": 1}
        strokes = plot(rows).mark("point", size=PIXELS, strokeCap="butt", **look)
        layers.append(strokes.encode(x=left, y=down, shape=channel("path:N", scale=None)))
    names = [{"name": lane["device"], "y": at * TALL + TEXT_AT} for at, lane in enumerate(chart["lanes"])]
    text = {"align": "left", "x": 0, "color": INK, "fontSize": SMALL, "limit": wide}
    layers.append(plot(names).mark("text", **text).encode(y=down, text=channel("name:N")))
    labels = [_label(lane, at, chart["end"], wide) for at, lane in enumerate(chart["lanes"]) if lane["label"]]
    words: dict[str, Any] = {"align": "left", "color": INK, "fontSize": SMALL}
    layers.append(plot(labels).mark("text", **words).encode(x=left, y=down, text=channel("words:N")))
    return svg(layered(layers, wide, tall))


def _label(lane: ChartRow, at: int, end: float, wide: float) -> ChartRow:
    """The words about the exposed part of a device: behind this part, where the lane of transfers has room for them,
    else above it."""
    label, pixel = lane["label"], end / wide
    behind = label["end"] + GAP * pixel
    later = (start for kind, start, _ in lane["parts"] if kind in TRANSFERS and start >= label["end"])
    if min(later, default=end) - behind > len(label["words"]) * CHARACTER * pixel:
        return {"words": label["words"], "x": behind, "y": at * TALL + LANES["exposed"][1]}
    return {"words": label["words"], "x": max(label["at"], NAME_PIXELS * pixel), "y": at * TALL + TEXT_AT}


def _path(parts: Sequence[Sequence[Any]], kinds: Sequence[str], end: float, wide: float) -> str:
    """One path for all parts of these kinds, because one mark per part would make a page of megabytes."""
    drawn: list[tuple[float, float]] = []
    for kind, start, stop in parts:
        if kind in kinds:
            touches = drawn and drawn[-1][1] == start
            drawn.append((drawn.pop()[0] if touches else start, stop))
    return "".join(f"M{wide * a / end:.1f},0L{wide * b / end:.1f},0" for a, b in drawn)


def hop_chart(chart: Chart, width: int) -> str:
    """SVG: one bar per hop in the order in which they begin; hidden is narrow, exposed is broad, waiting is hollow."""
    room = width - 50
    wide = min(WIDEST_BAR, 0.8 * room / len(chart["names"]))
    hop = channel("hop:N", title="hop", sort=chart["names"], axis={"labelAngle": 0, "labelOverlap": True})
    time = channel("low:Q", title=f"time ({chart['unit']})", scale={"zero": True}, axis={"tickCount": 5})
    layers = list[ChartLayer]()
    for kind, share in BARS.items():
        drawn = [bar for bar in chart["bars"] if bar["kind"] == kind]
        look = {"filled": kind != "skew", "color": COLOURS[kind], "size": share * wide}
        bars = plot(drawn).mark("bar", **look)
        layers.append(bars.encode(x=hop, y=time, y2={"field": "high"}))
    return svg(layered(layers, room, BARS_TALL))
