"""A grid of cells that compete: the fuller a cell, the closer it is to the best cell, which also has an outline; the
text says the same, so that no colour is needed."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from stripectl.reporters.html.vega_lite import filled, svg

WIDEST, NARROWEST = 92, 50  # pixels of a cell
FULLEST, FAINTEST = 0.6, 0.06  # of a cell that does not win: the page's text stays legible on both


class HeatmapCell(NamedTuple):
    """A cell with its text in two lines."""

    across: str
    down: str
    first: str
    second: str
    wins: bool
    fullness: float
    tip: str


class Axis(NamedTuple):
    """The names of columns or rows in their order, at this side of the cells."""

    title: str | None
    order: Sequence[str]
    side: str


@dataclass(frozen=True)
class Heatmap:
    """Cells by column and row."""

    cells: Sequence[HeatmapCell]
    across: Axis
    down: Axis
    kind: ClassVar = "grid"

    def draw(self, width: int) -> str:
        names = max(map(len, self.down.order), default=0) * 6 + 30
        step = min(WIDEST, max(NARROWEST, (width - names) // max(1, len(self.across.order))))
        form = filled("heatmap", {"cells": self.cells}, columns=self.across.order, rows=self.down.order)
        for channel, axis in (("x", self.across), ("y", self.down)):  # a side, and no title, are not parameters
            form["encoding"][channel]["axis"] |= {"title": axis.title, "orient": axis.side}
        return svg({**form, "width": {"step": step}})


def fullness(ratio: float | None, wins: bool, far: float) -> float:
    """The opacity of a cell, by the logarithm of its ratio to the best; all ratios from `far` on have the same."""
    if ratio is None or wins:
        return float(wins)
    near = 1 - math.log(min(max(ratio, 1.0), far)) / math.log(far)
    return FAINTEST + (FULLEST - FAINTEST) * near
