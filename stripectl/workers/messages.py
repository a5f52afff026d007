"""The messages between hosts: each is one of these classes, with exactly its fields, in JSON.

Nothing here names a method, a module, a file or a variable of the environment.
"""

import json
from dataclasses import asdict, dataclass
from typing import Any, TypeVar, get_origin, get_type_hints

from stripectl.workers.hosts import HostFacts

Message = TypeVar("Message")


@dataclass(frozen=True)
class Greeting:
    """A host's first message to host 0."""

    index: int
    count: int
    stripectl: str
    name: str
    cores: list[int]
    versions: dict[str, object]
    flags: dict[str, object]
    host: dict[str, object]

    def __post_init__(self) -> None:
        if not all(type(core) is int for core in self.cores):
            raise ValueError("cores are numbers")

    @property
    def facts(self) -> HostFacts:
        return HostFacts(self.name, self.cores, self.versions, self.flags, self.host, self.stripectl)


@dataclass(frozen=True)
class WorkerGreeting:
    """The first message of the connection of a worker."""

    worker: int


@dataclass(frozen=True)
class Welcome:
    """Host 0 accepts a host."""


@dataclass(frozen=True)
class Refuse:
    reason: str


@dataclass(frozen=True)
class Start:
    """Start a worker that measures: process `process` of `processes`, joined at `coordinator`, on a core or on all."""

    worker: int
    processes: int
    process: int
    coordinator: str
    core: int | None


@dataclass(frozen=True)
class End:
    """Wait for the end of a worker, and say how it ended."""

    worker: int


@dataclass(frozen=True)
class Stop:
    """End a worker now."""

    worker: int


@dataclass(frozen=True)
class Answer:
    """The answer to Start, End or Stop: a text, or None where there is nothing to say."""

    text: str | None


@dataclass(frozen=True)
class Done:
    """The command has ended: its exit code, the reason where it failed, and the recommended plan."""

    code: int
    reason: str
    recommended: str | None


ORDERS = (Welcome, Refuse, Start, End, Stop, Done)


def write(message: Any) -> bytes:
    return json.dumps({"kind": type(message).__name__} | asdict(message)).encode()


def read(content: bytes, *kinds: type[Message]) -> Message:
    """A message that is of one of some kinds.

    Raises:
        ValueError: it is not.
    """
    try:
        given = json.loads(content)
    except RecursionError:
        raise ValueError("this message is nested too deeply") from None
    known = {kind.__name__: kind for kind in kinds}
    if not isinstance(given, dict) or (kind := known.get(str(given.pop("kind", None)))) is None:
        raise ValueError("the kind of this message is not known here")
    types = get_type_hints(kind)
    if given.keys() != types.keys():
        raise ValueError(f"{kind.__name__} has the fields {', '.join(types) or 'none'}")
    for name, wanted in types.items():
        plain = get_origin(wanted) if get_origin(wanted) in (list, dict) else wanted
        if not isinstance(given[name], plain) or isinstance(given[name], bool):
            raise ValueError(f"{name} of {kind.__name__} is not {wanted}")
    return kind(**given)
