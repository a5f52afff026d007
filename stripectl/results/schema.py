"""Limits of a run: its size, and which numbers and what nesting a run.json written by anybody may have. Fields are
checked where records are read (`records`)."""

from collections.abc import Iterable

from stripectl.util.json import is_list, is_mapping

MAX_MEASUREMENTS = 2**17  # of a run
MAX_ASKED_PLANS = 2**13  # of a command
MAX_SIMULATED_PLANS = 2**16  # plans of a workload that a command simulates to find the best
MAX_SAMPLES = 10_000  # of a measurement
MAX_HOSTS = 4096  # of a command
MIN_NUMBER, MAX_NUMBER = 1e-60, 1e60  # magnitude of a number other than zero: ratios of ratios stay finite
MAX_NESTING = 32
# The size of a run or its journal, the lists and mappings in it, and all values: reading takes at most 2 GiB.
MAX_RUN_BYTES = MAX_JOURNAL_BYTES = 2**27
MAX_RUN_PARTS, MAX_RUN_VALUES = 2**22, 2**24


def is_number(value: object) -> bool:
    """Zero, or a positive number of which ratios of ratios can be taken."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return value == 0 or MIN_NUMBER <= value <= MAX_NUMBER


def check_size(content: bytes) -> None:
    """Refuse the text of JSON that would take too much memory, before it is parsed.

    Raises:
        ValueError: it exceeds a limit.
    """
    parts = content.count(b"[") + content.count(b"{")
    if len(content) > MAX_RUN_BYTES or parts > MAX_RUN_PARTS:
        raise ValueError(f"it unpacks to more than {MAX_RUN_BYTES >> 20} MiB, or {MAX_RUN_PARTS:,} lists and mappings")
    if content.count(b",") > MAX_RUN_VALUES:
        raise ValueError(f"it holds more than {MAX_RUN_VALUES:,} values")


def is_shallow(value: object) -> bool:
    """Whether lists and mappings are nested at most MAX_NESTING deep; recursive functions cannot read more."""
    level = [value]
    for _ in range(MAX_NESTING):
        level = [each for part in level for each in parts_of(part) if isinstance(each, dict | list)]
    return not level


def parts_of(value: object) -> Iterable[object]:
    """The values in a mapping or list; nothing in other data."""
    return value.values() if is_mapping(value) else value if is_list(value) else ()


def is_small(value: object) -> bool:
    """Whether a float can hold every integer in a mapping or list, and in those inside it."""
    integers = [each for each in parts_of(value) if isinstance(each, int)]
    small = not integers or max(map(abs, integers)) <= MAX_NUMBER
    return small and all(is_small(each) for each in parts_of(value) if is_mapping(each) or is_list(each))
