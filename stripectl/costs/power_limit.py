"""The power limit of a GPU: after some milliseconds of work without a pause it lowers the clock.

Published times of single calls have a pause before each call, so the first milliseconds of a call run at the full rate,
for which the tables have costs. Training steps and repeated plans have no pauses. The share of the rate that is left is
a figure of the machine, by dtype; a machine without the figure keeps its rate.
"""

from dataclasses import replace

from stripectl.hardware.profile import Hardware
from stripectl.results.tile_cost import TileCost

SHARE = "sustained_share_"  # how the name of the figure begins; the dtype follows
# After a pause; of 5, 8, 12 and 16 ms it fits the published times of cuDNN on GB200 and GB300 best.
FULL_RATE_S = 8e-3


def sustained_share(hardware: Hardware, dtype: str) -> float:
    """The share of its rate that a machine keeps without pauses."""
    return hardware.figure(f"{SHARE}{dtype}") or 1.0


def without_pauses(cost: TileCost, hardware: Hardware, dtype: str) -> TileCost:
    """The cost of a tile of the full rate, where a machine computes without pauses."""
    share = sustained_share(hardware, dtype)
    return replace(cost, whole_s=cost.whole_s / share, boundary_s=cost.boundary_s / share)


def at_full_rate(hardware: Hardware) -> Hardware:
    """The machine without its power limit."""
    return replace(
        hardware, figures={name: value for name, value in hardware.figures.items() if not name.startswith(SHARE)}
    )


def after_pause(seconds: float, share: float) -> float:
    """Seconds of a call after a pause, of its seconds at the full rate; the inverse for the inverse of a share."""
    return min(seconds, FULL_RATE_S) + max(0.0, seconds - FULL_RATE_S) / share
