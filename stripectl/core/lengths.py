"""Lengths of sequences as text: `256k`, `16k..1M`."""

import re
from collections.abc import Sequence

from stripectl.errors import BadInput
from stripectl.util.several import Several, split_commas

MAX_SEQ_LEN = 2**30  # positions are 32-bit integers, and sums of two must not overflow
SUFFIXES = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30}


def parse_length(text: int | str) -> int:
    """A sequence length: 262144, `262144`, `256k` (k, M and G are 1024-based, the papers' notation).

    Raises:
        BadInput: not a length, or not between 1 and 1G.
    """
    match = re.fullmatch(r"(\d{1,18})\s*([kmg]?)i?", str(text).strip().lower())
    if not match:
        raise BadInput(f"{text!r} is not a length. Write tokens, or k, M: 262144, 256k, 1M.")
    value = int(match[1]) * SUFFIXES[match[2]]
    if not 1 <= value <= MAX_SEQ_LEN:
        raise BadInput(f"a length of {text} is out of range: from 1 to {MAX_SEQ_LEN} (1G) tokens.")
    return value


def parse_lengths(text: Several[int | str]) -> list[int]:
    """A grid of lengths: commas separate lengths, and `16k..1M` doubles from the first to the last."""
    lengths: list[int] = []
    for part in split_commas(text):
        first, dots, last = str(part).partition("..")
        value, end = parse_length(first), parse_length(last if dots else first)
        if value > end:
            raise BadInput(f"the range {part} is descending. Write the shorter length first.")
        while value <= end:
            lengths.append(value)
            value *= 2
    return list(dict.fromkeys(lengths))


def format_length(length: int) -> str:
    """`256k` for 262144; a length that is not a multiple of 1024 stays as it is."""
    for suffix in ("M", "k"):
        unit = SUFFIXES[suffix.lower()]
        if length % unit == 0:
            return f"{length // unit}{suffix}"
    return str(length)


def at_lengths(lengths: Sequence[int]) -> str:
    """Where neighbouring lengths are, the shortest first: `at 64k`, `from 64k to 1M`."""
    first, last = (format_length(lengths[end]) for end in (0, -1))
    return f"at {first}" if len(lengths) == 1 else f"from {first} to {last}"
