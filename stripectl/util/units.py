"""Numbers with their units, for people: seconds and bytes are formatted only here."""

import re
from collections.abc import Callable, Sequence

NOTHING = "n/a"
SECONDS = (("s", 1.0), ("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9))
BYTES = (("GiB", 2.0**30), ("MiB", 2.0**20), ("KiB", 2.0**10), ("B", 1.0))
PREFIXES = (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3), ("", 1.0))


def digits(value: float) -> str:
    """A number with three digits, or all digits of a larger whole number."""
    if value == 0:
        return "0"
    return f"{value:,.0f}" if value >= 99.95 else f"{value:#.3g}".rstrip(".")


def unit_of(value: float, units: Sequence[tuple[str, float]]) -> tuple[str, float]:
    """The first of `units` (name, size; descending) of which the value is at least one, or the last."""
    return next((unit for unit in units if value >= unit[1]), units[-1])


def with_unit(value: float, units: Sequence[tuple[str, float]]) -> str:
    """The value in the unit that suits it."""
    name, size = unit_of(value, units)
    return f"{digits(value / size)} {name}"


def duration(seconds: float | None) -> str:
    return NOTHING if seconds is None else with_unit(seconds, SECONDS)


def with_interval(value: float | None, ci95: Sequence[float] | None, written: Callable[[float], str] = duration) -> str:
    """A number (by default a time in seconds), and half of its interval as a percentage."""
    if not ci95 or not value:
        return NOTHING if value is None else written(value)
    return f"{written(value)} ±{50 * (ci95[1] - ci95[0]) / value:.1f}%"


def nbytes(count: float | None) -> str:
    return NOTHING if count is None else with_unit(count, BYTES)


def rate(per_s: float | None, unit: str) -> str:
    return NOTHING if per_s is None else with_unit(per_s, [(prefix + unit, size) for prefix, size in PREFIXES])


def times(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.2f}x" if value >= 0.095 else f"{value:.2g}x"


# The end of a name gives its unit (docs/contributing/style.md); a rate or a share may be for a dtype.
ENDINGS: tuple[tuple[str, Callable[[float], str]], ...] = (
    (r"bytes_per_s(_one_way)?", lambda value: rate(value, "B/s")),
    (r"flops_per_s(_b?float\d+)?", lambda value: rate(value, "FLOP/s")),
    (r"hz", lambda value: rate(value, "Hz")),
    (r"bytes", nbytes),
    (r"_share(_b?float\d+)?", lambda value: f"{value:.0%}"),
    (r"error", lambda value: f"{value:+.1%}"),
    (r"_s", duration),
)


def in_unit(name: str, value: float) -> str:
    """A number in the unit that its name ends in; unchanged where the name gives no unit."""
    written = next((written for ending, written in ENDINGS if re.search(f"{ending}$", name)), str)
    return written(value)


def plural(count: int, noun: str) -> str:
    """A number of things: `1 device`, `2 devices`."""
    return f"{count:,} {noun}{'s' * (count != 1)}"
