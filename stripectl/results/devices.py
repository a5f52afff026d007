"""The devices that a command finds."""

from dataclasses import dataclass

from stripectl.results.records import record_json
from stripectl.util.json import JsonObject


@dataclass(frozen=True, kw_only=True)
class DeviceGroup:
    """The devices of one kind that a group of processes drives; a device of a TPU has coordinates in its slice."""

    processes: int = 1
    platform: str
    kind: str
    count: int
    coordinates: list[list[int] | None]

    def to_json(self) -> JsonObject:
        """The group as in `environment["devices"]` of a run."""
        return record_json(self)
