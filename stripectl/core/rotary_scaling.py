"""How the frequencies of rotary angles are scaled for sequences longer than a model's first training used."""

import math
import reprlib
from typing import NamedTuple

from stripectl.errors import BadInput
from stripectl.util.json import is_mapping, is_positive


class RotaryScaling(NamedTuple):
    """Frequencies are divided by a factor: all of them, or, with a `length` (Llama 3.1), of wavelengths above length /
    low entirely, below length / high not at all, and between them by an interpolation."""

    factor: float
    low: float | None = None
    high: float | None = None
    length: float | None = None


class YarnScaling(NamedTuple):
    """YaRN (Peng et al. 2023, arXiv:2309.00071): frequencies that turn at least `fast` times in `length` positions
    stay, frequencies that turn at most `slow` times are divided by the factor, and between them the part that stays
    falls linearly with the number of the frequency. `whole`: the bounds are rounded to whole numbers, outwards. Rotated
    elements are multiplied by `attention_factor`, 0.1 ln(factor) + 1 where it is None."""

    factor: float
    length: float
    fast: float = 32.0
    slow: float = 1.0
    attention_factor: float | None = None
    whole: bool = True

    @property
    def growth(self) -> float:
        """The factor of rotated elements."""
        return yarn_growth(self.factor) if self.attention_factor is None else self.attention_factor


def yarn_growth(factor: float, share: float = 1.0) -> float:
    """The factor of rotated elements that suits a factor of frequencies (Peng et al. 2023, section 3.4); a model may
    have a share of its logarithm."""
    return 0.1 * share * math.log(max(factor, 1.0)) + 1


Scaling = RotaryScaling | YarnScaling
REQUIRED: dict[tuple[str, ...], type[Scaling]] = {
    ("factor",): RotaryScaling,
    RotaryScaling._fields: RotaryScaling,
    ("factor", "length", "fast", "slow"): YarnScaling,
}


def rotary_scaling_of(content: object) -> Scaling:
    """From a mapping of the names of fields to their values.

    Raises:
        BadInput: it is not, or a value is wrong.
    """
    keys = {*content} if is_mapping(content) else {None}
    optional = {"attention_factor", "whole"} if "fast" in keys else set[str]()
    kind = next((each for names, each in REQUIRED.items() if {*names} == keys - optional), None)
    if kind is None or not is_mapping(content):
        known = " or ".join(f"{{{', '.join(names)}}}" for names in REQUIRED)
        raise BadInput(f"rotary_scaling must have the keys {known}, not {reprlib.repr(content)}.")
    numbers = {name: value for name, value in content.items() if name != "whole"}
    low, high = (content.get(name) for name in (("slow", "fast") if kind is YarnScaling else ("low", "high")))
    if not all(map(is_positive, numbers.values())) or (low or 0) >= (high or math.inf):
        below = "slow below fast" if kind is YarnScaling else "low below high"
        raise BadInput(f"rotary_scaling has positive numbers, {below}, not {reprlib.repr(content)}.")
    if not isinstance(content.get("whole", True), bool):
        raise BadInput(f"whole in rotary_scaling must be true or false, not {reprlib.repr(content['whole'])}.")
    return kind(**content)
