"""The options of commands as typed values. Options of a request are `runner.options.RequestOptions`."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self


@dataclass(frozen=True, kw_only=True)
class CommandOptions:
    """Some options of a command; each field has the name of its option."""

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Self:
        """These options among the parameters that click gives a command."""
        return cls(**{each.name: given[each.name] for each in fields(cls) if each.name in given})


@dataclass(frozen=True, kw_only=True)
class OutputOptions(CommandOptions):
    """Where a run and its history are kept, whether it continues an earlier run, and what a terminal shows."""

    output: Path | None = None
    resume: bool = False
    history: Path | None = None
    as_json: bool = False
    all_plans: bool = False
    wide: bool = False
    quiet: bool = False


@dataclass(frozen=True, kw_only=True)
class HostOptions(CommandOptions):
    """The hosts that run a command together."""

    coordinator: str | None = None
    num_processes: int | None = None
    process_id: int | None = None
    cluster: str | None = None
    quiet: bool = False
