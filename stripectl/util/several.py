"""Options that take one value or several: a text has commas where Python has a list."""

from collections.abc import Sequence
from typing import TypeAlias, TypeVar

T = TypeVar("T")
Several: TypeAlias = T | Sequence[T] | None  # None: the option is unset


def several(value: Several[T]) -> list[T]:
    """The values of an option that is set once or several times; none where it is unset."""
    if value is None:
        return []
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else [value]  # type: ignore


def split_commas(value: Several[T]) -> list[T]:
    """The values of an option whose text is a comma-separated list."""
    return [
        part.strip() if isinstance(part, str) else part  # type: ignore
        for each in several(value)
        for part in (each.split(",") if isinstance(each, str) else [each])
    ]
