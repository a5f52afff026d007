"""Lists of names, grids and durations in the options of a request."""

import itertools
import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

from stripectl.errors import BadInput
from stripectl.results.schema import MAX_ASKED_PLANS
from stripectl.util.files import unknown_name
from stripectl.util.several import Several, split_commas

ALL = "all"
MAX_DURATION_S = 480 * 3600  # the milliseconds of a longer wait do not fit into 31 bits


def expand_grid(*axes: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
    """Every combination of the values of all axes."""
    check_count(math.prod(map(len, axes)))
    return itertools.product(*axes)


def check_count(count: int) -> None:
    """Check that a run can hold `count` measurements.

    Raises:
        BadInput: it cannot.
    """
    if count > MAX_ASKED_PLANS:
        raise BadInput(
            f"the options make a grid of {count:,} measurements, but one command runs at most {MAX_ASKED_PLANS:,}. "
            f"Make the grid smaller."
        )


def parse_names(text: Several[str], kind: str, known: Sequence[str]) -> list[str]:
    """A list of known names, or `all`.

    Raises:
        BadInput: an unknown name, with the nearest known names.
    """
    names = split_commas(text)
    if ALL in names:
        return list(known)
    for name in names:
        if name not in known:
            raise unknown_name(kind, name, known)
    return list(dict.fromkeys(names))


def parse_duration(text: float | str) -> float:
    """Seconds of `90s`, `3m`, `1h`, or a plain number.

    Raises:
        BadInput: not a duration, or longer than any wait.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", str(text).strip())
    seconds = float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]] if match else 0.0
    if not 0 < seconds <= MAX_DURATION_S:
        raise BadInput(f"{text!r} is not a duration of at most {MAX_DURATION_S // 3600} hours. Write 90s, 3m or 1h.")
    return seconds
