"""Predicted collectives in a node of GPUs, compared with times that others measured
(`profiles/published/collectives.csv`): no row comes from the measurements that the predictions interpolate.

`bytes` is the array that a device has after an all-gather, or before another operation; of a hop, what each of the
devices sends to the next.
"""

from functools import cache
from typing import NamedTuple

from stripectl.analysis.accuracy.ratio_error import RatioError, ratio_error
from stripectl.costs.node_collectives import node_collectives
from stripectl.hardware.profile import Hardware
from stripectl.util.files import table_rows
from stripectl.util.units import nbytes as bytes_text

HOP = "hop"


class PublishedCollective(NamedTuple):
    """A published time of a collective, and its prediction."""

    source: str
    hardware: str
    operation: str
    devices: int
    nbytes: int
    seconds: float
    predicted: float


class CollectiveGroup(NamedTuple):
    """The rows of a device, an operation and a number of devices."""

    hardware: str
    operation: str
    devices: int
    error: RatioError


@cache
def published_collectives() -> tuple[PublishedCollective, ...]:
    """Every published time."""
    found: list[PublishedCollective] = []
    for row in table_rows("published/collectives"):
        what = row["hardware"], row["operation"], int(row["devices"]), int(row["bytes"])
        found.append(PublishedCollective(row["source"], *what, float(row["us"]) * 1e-6, predicted_collective_s(*what)))
    return tuple(found)


def predicted_collective_s(hardware: str, operation: str, devices: int, nbytes: int) -> float:
    node = node_collectives(Hardware.load(hardware))
    assert node, hardware
    return sum(node.hop(nbytes, devices) if operation == HOP else node.collective(operation, devices, nbytes))


def collective_groups() -> list[CollectiveGroup]:
    """The groups, in the order of their first rows."""
    groups: dict[tuple[str, str, int], list[PublishedCollective]] = {}
    for each in published_collectives():
        groups.setdefault((each.hardware, each.operation, each.devices), []).append(each)
    return [
        CollectiveGroup(
            *key,
            ratio_error(
                [each.predicted / each.seconds for each in members], [bytes_text(each.nbytes) for each in members]
            ),
        )
        for key, members in groups.items()
    ]
