"""A grid of cells that compete: the fuller a cell, the closer it is to the best cell, which also has an outline; the
text says the same, so that no colour is needed."""

import math

from stripectl.reporters.html.charts import (
    COLOURS,
    INK,
    Chart,
    ChartLayer,
    channel,
    either,
    layered,
    plot,
    svg,
    tip_channel,
)

WIDEST, NARROWEST, TALL = 92, 50, 36  # pixels of a cell
FULLEST, FAINTEST = 0.6, 0.06  # of a cell that does not win: the page's text stays legible on both


def fullness(ratio: float | None, wins: bool, far: float) -> float:
    """The opacity of a cell, by the logarithm of its ratio to the best; all ratios from `far` on have the same."""
    if ratio is None or wins:
        return float(wins)
    near = 1 - math.log(min(max(ratio, 1.0), far)) / math.log(far)
    return FAINTEST + (FULLEST - FAINTEST) * near


def draw(chart: Chart, width: int) -> str:
    """SVG. `cells` are {across, down, first, second, wins, fullness}, with the text of a cell in two lines; `across`
    and `down` are {title, order, side} of an axis."""
    across, down = chart["across"], chart["down"]
    base = plot(chart["cells"]).encode(
        x=channel(
            "across:N", title=across["title"], sort=across["order"], axis={"orient": across["side"], "labelAngle": 0}
        ),
        y=channel("down:N", title=down["title"], sort=down["order"], axis={"labelLimit": 0}),
    )
    look = {"fill": COLOURS[0], "stroke": INK, "cornerRadius": 3}
    squares = base.mark("rect", **look).encode(
        fillOpacity=channel("fullness:Q", scale=None),
        strokeWidth=either("datum.wins", 2, 0.5),
        strokeOpacity=either("datum.wins", 1, 0.2),
        description=tip_channel(),
    )
    names = max((len(str(name)) for name in down["order"]), default=0) * 6 + 30
    step = min(WIDEST, max(NARROWEST, (width - names) // max(1, len(across["order"]))))
    words = *_words(base, "datum.wins", "var(--on-c1)", "bold"), *_words(base, "!datum.wins", INK, "normal")
    return svg(layered((squares, *words), {"step": step}, {"step": TALL}))


def _words(base: ChartLayer, which: str, ink: str, weight: str) -> list[ChartLayer]:
    """Both lines of the given cells; a single line is in the middle."""
    lines = (("first", -6, 11, "datum.second"), ("second", 8, 10, "datum.second"), ("first", 1, 11, "!datum.second"))
    return [
        base.where(f"{which} && {when}")
        .mark("text", dy=down, fontSize=size, color=ink, fontWeight=weight)
        .encode(text=channel(f"{field}:N"))
        for field, down, size, when in lines
    ]
