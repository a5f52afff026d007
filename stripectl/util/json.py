"""Types for JSON: files, requests to workers and their answers, and the data of a page."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, TypeGuard

Json: TypeAlias = "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None"
JsonObject: TypeAlias = Mapping[str, Json]


def is_mapping(value: object) -> TypeGuard[dict[Any, Any]]:
    """Whether a value from a file is a mapping."""
    return isinstance(value, dict)


def is_sequence(value: object) -> TypeGuard[Sequence[Any]]:
    """Whether a value of a record is a list or a tuple."""
    return isinstance(value, list | tuple)


def is_list(value: object) -> TypeGuard[list[Any]]:
    """Whether a value from a file is a list."""
    return isinstance(value, list)


def is_positive(value: object) -> bool:
    """Whether a value is a positive number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf
