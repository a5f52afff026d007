"""The output options of the commands that run plans."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any


@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """Where a run and its history are kept, whether it continues an earlier run, and what a terminal shows."""

    output: Path | None = None
    resume: bool = False
    history: Path | None = None
    as_json: bool = False
    all_plans: bool = False
    wide: bool = False
    quiet: bool = False

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> "OutputOptions":
        """The output options among the parameters that click gives a command."""
        known = {each.name for each in fields(cls)}
        return cls(**{name: value for name, value in given.items() if name in known})
