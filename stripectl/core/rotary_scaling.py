"""How the frequencies of rotary angles are scaled for sequences longer than a model's first training used."""

import math
import reprlib
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from stripectl.errors import BadInput
from stripectl.util.json import is_mapping, is_positive


class RotaryScaling(NamedTuple):
    """Frequencies are divided by a factor: all of them, or, with a `length` (Llama 3.1), of wavelengths above length /
    low entirely, below length / high not at all, and between them by an interpolation."""

    factor: float
    low: float | None = None
    high: float | None = None
    length: float | None = None

    @property
    def mscale(self) -> float:
        """The factor of cosines and sines."""
        return 1.0

    def factors(self, number: int, base: float) -> np.ndarray:
        """float64: the factor of each of `number` frequencies of a rotary base."""
        if self.low is None or self.high is None or self.length is None:
            return np.full(number, 1 / self.factor)
        turns = self.length * base ** (-np.arange(number) / number) / (2 * np.pi)  # in these positions
        kept = np.clip((turns - self.low) / (self.high - self.low), 0, 1)
        return kept + (1 - kept) / self.factor


class YarnScaling(NamedTuple):
    """YaRN (Peng et al. 2023, arXiv:2309.00071): frequencies that turn at least `fast` times in `length` positions
    stay, frequencies that turn at most `slow` times are divided by the factor, and between them the part that stays
    falls linearly with the number of the frequency. `whole`: the bounds are rounded to whole numbers, outwards. Cosines
    and sines are multiplied by `attention_factor`, 0.1 ln(factor) + 1 where it is None."""

    factor: float
    length: float
    fast: float
    slow: float
    attention_factor: float | None = None
    whole: bool = True

    @property
    def mscale(self) -> float:
        """The factor of cosines and sines."""
        return yarn_mscale(self.factor) if self.attention_factor is None else self.attention_factor

    def factors(self, number: int, base: float) -> np.ndarray:
        """float64: the factor of each of `number` frequencies of a rotary base (Peng et al. 2023, section 3.2)."""
        turns = np.array([self.fast, self.slow])
        first, last = number * np.log(self.length / (2 * np.pi * turns)) / np.log(base)  # which turn so often
        if self.whole:
            first, last = np.floor(first), np.ceil(last)
        first, last = max(first, 0.0), min(last, 2 * number - 1.0)
        divided = np.clip((np.arange(number) - first) / max(last - first, 1e-3), 0, 1)
        return 1 - divided + divided / self.factor


def yarn_mscale(factor: float, share: float = 1.0) -> float:
    """The factor of cosines and sines that suits a factor of frequencies (Peng et al. 2023, section 3.4). DeepSeek's
    `mscale` multiplies its logarithm by a share."""
    return 0.1 * share * math.log(max(factor, 1.0)) + 1


Scaling = RotaryScaling | YarnScaling


def rotary_scaling_of(content: object) -> Scaling:
    """From a mapping of the names of fields to their values.

    Raises:
        BadInput: it is not, or a value is wrong.
    """
    linear, llama, yarn = ("factor",), RotaryScaling._fields, YarnScaling._fields[:4]
    keys = {*content} if is_mapping(content) else set[str]()
    if is_mapping(content) and keys in ({*linear}, {*llama}):
        check_scaling(content, "low", "high")
        return RotaryScaling(**content)
    if is_mapping(content) and {*yarn} <= keys <= {*YarnScaling._fields}:
        check_scaling({name: value for name, value in content.items() if name != "whole"}, "slow", "fast")
        if not isinstance(content.get("whole", True), bool):
            raise BadInput(f"whole in rotary_scaling must be true or false, not {reprlib.repr(content['whole'])}.")
        return YarnScaling(**content)
    known = " or ".join(f"{{{', '.join(names)}}}" for names in (linear, llama, yarn))
    raise BadInput(f"rotary_scaling must have the keys {known}, not {reprlib.repr(content)}.")


def check_scaling(numbers: Mapping[str, float], low: str, high: str) -> None:
    """Do nothing for positive numbers of which one is below another.

    Raises:
        BadInput: they are not.
    """
    if not all(map(is_positive, numbers.values())) or numbers.get(low, 0) >= numbers.get(high, math.inf):
        raise BadInput(f"rotary_scaling has positive numbers, {low} below {high}, not {reprlib.repr(dict(numbers))}.")
