"""The drawings of a profile: a step on every device, and the hidden and exposed parts of every hop.

A device has two lanes, compute above and transfers below. Both are filled where a transfer is hidden, only the lower
one where it is exposed; where the device waits for a slower device, the lower lane has a thin line. Colours show the
same.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from stripectl.reporters.html.vega_lite import draw_file

TALL, TEXT_AT = 44, 7  # pixels of a device, down to its name
NAME_PIXELS = 90  # of the name of a device, right of which a label begins
CHARACTER, GAP = 6, 6  # pixels of a letter of a label, and left of a label
UPPER, LOWER = 21, 33  # pixels down to the middle of the lane of compute and of transfers
LANES = {  # the colours of a device, in the order of drawing: the kinds of moments that are drawn, their lane
    "compute": (("compute", "hidden"), UPPER),
    "hidden": (("hidden",), LOWER),
    "exposed": (("exposed",), LOWER),
    "skew": (("skew",), LOWER),
}
TRANSFERS = ("hidden", "exposed", "skew")  # the kinds in the lower lane of a device


class Part(NamedTuple):
    """A part of a step on a device, in the unit of the drawing."""

    kind: str
    start: float
    end: float


class Label(NamedTuple):
    """Words about the part of a step between these times."""

    start: float
    end: float
    words: str


class Lane(NamedTuple):
    """A step on a device."""

    device: str
    parts: Sequence[Part]
    label: Label | None


class LanePath(NamedTuple):
    """All parts of a device with one colour: a mark per part would make a page of megabytes."""

    kind: str
    y: float
    path: str


class Words(NamedTuple):
    """A text in the unit of the drawing across and in pixels down."""

    words: str
    x: float
    y: float


@dataclass(frozen=True)
class StepChart:
    """Devices below each other, with time from left to right, in `unit`, to `end`."""

    lanes: Sequence[Lane]
    end: float
    unit: str
    kind: ClassVar = "step"
    keys: ClassVar = (("compute", "compute alone"), ("hidden", "hidden"), ("exposed", "exposed"), ("skew", "skew"))

    def draw(self, width: int) -> str:
        wide = width - 20
        data = {
            "paths": self.paths(wide),
            "names": [Words(lane.device, 0, at * TALL + TEXT_AT) for at, lane in enumerate(self.lanes)],
            "labels": self.labels(wide),
        }
        size = {"width": wide, "height": TALL * len(self.lanes)}
        return draw_file("step", data, size, title=f"time ({self.unit})", end=self.end)

    def paths(self, wide: int) -> Iterator[LanePath]:
        """The parts of all devices, colour by colour."""
        for colour, (kinds, middle) in LANES.items():
            for at, lane in enumerate(self.lanes):
                drawn = list[tuple[float, float]]()
                for kind, start, end in lane.parts:
                    if kind in kinds:
                        touches = drawn and drawn[-1][1] == start
                        drawn.append((drawn.pop()[0] if touches else start, end))
                if drawn:
                    path = "".join(f"M{wide * a / self.end:.1f},0L{wide * b / self.end:.1f},0" for a, b in drawn)
                    yield LanePath(colour, at * TALL + middle, path)

    def labels(self, wide: int) -> Iterator[Words]:
        """The words about the exposed part of a device: behind this part, where the lane of transfers has room for
        them, else above it."""
        pixel = self.end / wide
        for at, lane in enumerate(self.lanes):
            if label := lane.label:
                behind = label.end + GAP * pixel
                later = (part.start for part in lane.parts if part.kind in TRANSFERS and part.start >= label.end)
                if min(later, default=self.end) - behind > len(label.words) * CHARACTER * pixel:
                    yield Words(label.words, behind, at * TALL + LOWER)
                else:
                    yield Words(label.words, max(label.start, NAME_PIXELS * pixel), at * TALL + TEXT_AT)


class HopBar(NamedTuple):
    """A part of a hop's time."""

    hop: str
    kind: str
    low: float
    high: float


@dataclass(frozen=True)
class HopChart:
    """A bar per hop, in `unit`: hidden is narrow, exposed is broad, waiting is hollow."""

    hops: Sequence[str]
    bars: Sequence[HopBar]
    unit: str
    kind: ClassVar = "hops"
    keys: ClassVar = (("hidden", "hidden"), ("exposed", "exposed transfer"), ("skew", "skew"))

    def draw(self, width: int) -> str:
        size = {"width": width - 50}
        return draw_file("hops", {"bars": self.bars}, size, title=f"time ({self.unit})", hops=self.hops)
