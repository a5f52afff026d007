"""The best scheme by length, as regions: lengths from left to right, one strip per pass, one region per answer. Schemes
that tie share a region, which has both names."""

import itertools
import math
from collections.abc import Sequence

from stripectl.analysis.by_length import QUESTION, SchemesByLength
from stripectl.core.lengths import format_length
from stripectl.reporters.html.charts import (
    COLOURS,
    FONT_SIZE,
    INK,
    Chart,
    ChartRow,
    channel,
    chart,
    chart_table,
    layered,
    plot,
    svg,
    tip,
    tip_channel,
)
from stripectl.reporters.html.line_chart import TOKENS

TITLE = "Which scheme to use, by length"
COLUMNS = ("pass", "from", "to", "scheme")
STRIP_PIXELS = 76  # of a pass
CHARACTER = 7  # pixels of a letter in a region's name


def scheme_map(contests: Sequence[SchemesByLength]) -> Chart:
    """The regions of comparisons that differ only in their pass."""
    regions = [region for contest in contests for region in _regions(contest)]
    lengths = sorted({each.seq_len for contest in contests for each in contest.lengths})
    return chart(
        "regions",
        QUESTION,
        TITLE,
        [each.best.method for contest in contests for each in contest.lengths if each.best],
        " ".join(f"{contest.workload.passes}: {contest.answer}" for contest in contests),
        chart_table(COLUMNS, [(r["pass"], r["first"], r["last"], r["name"]) for r in regions], COLUMNS),
        "Regions end halfway between two lengths of the run. The table names the schemes of a tie.",
        regions=regions,
        lengths=lengths,
        schemes=list(dict.fromkeys(r["scheme"] for r in regions))[: len(COLOURS)],
        passes=[contest.workload.passes for contest in contests],
    )


def _regions(contest: SchemesByLength) -> list[ChartRow]:
    lengths = [each.seq_len for each in contest.lengths]
    steps = [1 / math.sqrt(lengths[1] / lengths[0]), *(math.sqrt(b / a) for a, b in itertools.pairwise(lengths))]
    steps.append(steps[-1])
    found, at = list[ChartRow](), 0
    for leaders, group in itertools.groupby(contest.lengths, key=lambda each: each.leaders):
        count = len(list(group))
        first, last = lengths[at], lengths[at + count - 1]
        names = " or ".join(leaders[:2]) + " ..." * (len(leaders) > 2) if leaders else "no plan has a time"
        region = {
            "pass": contest.workload.passes,
            "first": format_length(first),
            "last": format_length(last),
            "low": first * steps[0] if at == 0 else first / steps[at],
            "high": last * steps[at + count],
            "middle": math.sqrt(first * last),
            "scheme": leaders[0] if leaders else "",
            "name": names,
            "brief": "tie" if len(leaders) > 1 else names,
        }
        span = format_length(first) + (f" to {format_length(last)}" if count > 1 else "")
        found.append(region | {"tip": tip(f"{region['pass']}, {span} tokens: {names}")})
        at += count
    return found


def draw(chart: Chart, width: int) -> str:
    """SVG. `regions` are as from `_regions`, `schemes` are in the order of their colours."""
    regions, wide = chart["regions"], width - 20
    ends = [min(each["low"] for each in regions), max(each["high"] for each in regions)]
    scale = {"type": "log", "base": 2, "domain": ends, "nice": False}
    ticks = chart["lengths"][:: -(-len(chart["lengths"]) // max(2, width // 70))]
    axis = {"values": ticks, "labelExpr": TOKENS, "grid": False}
    across = channel("low:Q", title="sequence length (tokens)", scale=scale, axis=axis)
    rows = channel("pass:N", title=None, sort=chart["passes"], axis=None, scale={"paddingInner": 0})
    per_pixel = math.log(ends[1] / ends[0]) / wide
    named = [
        each | {"short": next((text for text in (each["name"], each["brief"]) if len(text) * CHARACTER <= room), "")}
        for each in regions
        for room in (math.log(each["high"] / each["low"]) / per_pixel,)
    ]
    base = plot(named).encode(y=rows)
    colour = {"domain": chart["schemes"], "range": list(COLOURS[: len(chart["schemes"])])}
    boxes = base.mark("bar", height=34, yOffset=10, fillOpacity=0.3, strokeWidth=1.5).encode(
        x=across,
        x2={"field": "high"},
        color=channel("scheme:N", scale=colour, legend=None),
        stroke=channel("scheme:N", scale=colour, legend=None),
        description=tip_channel(),
    )
    text = {"color": INK, "fontSize": FONT_SIZE + 1}
    names = base.mark("text", yOffset=10, fontWeight="bold", **text).encode(
        x=channel("middle:Q"), text=channel("short:N")
    )
    firsts = [each for at, each in enumerate(regions) if at == 0 or each["pass"] != regions[at - 1]["pass"]]
    passes = plot(firsts).encode(y=rows).mark("text", x=0, yOffset=-20, align="left", **text)
    layers = boxes, names, passes.encode(text=channel("pass:N"))
    return svg(layered(layers, wide, {"step": STRIP_PIXELS}))
