"""Parts of a published model that stripectl does not compute: the part, the part in its place, and the figures that
this distorts.

A part distorts a figure where the replacement does other work, in matrices, scores or bytes. A part whose work grows
with the tokens and the hidden size alone, as the work of a layer's norms does, is replaced without a mark. Memory is
distorted only where the parameters of a part are not counted.
"""

from collections.abc import Iterable
from typing import NamedTuple

from stripectl.errors import BadInput
from stripectl.util.json import Json, JsonObject, is_list, is_mapping

FIGURES = ("time", "memory", "bytes")
WORK = ("time", "bytes")  # of a part that multiplies and sends other arrays, and whose parameters are counted
MAX_PARAMETERS = 2**50  # more than any model has; sums stay exact in a float64
OMITTED = "omitted"


class Replacement(NamedTuple):
    """A part of a model that stripectl does not compute, the part in its place (`omitted`: none), how many more
    parameters the first has, and the figures of FIGURES that differ from the model's figures."""

    part: str
    instead: str = ""
    parameters: int = 0
    distorts: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.part} ({self.instead})" if self.instead else self.part


def replacements_text(replaced: Iterable[Replacement]) -> str:
    """All parts, each with the part in its place, in one text."""
    return "; ".join(map(str, replaced))


def read_replacements(value: Json) -> tuple[Replacement, ...]:
    """The parts in a model's YAML file: a list of mappings. A text, as files had before, is one part that may distort
    every figure.

    Raises:
        BadInput: it is neither.
    """
    if isinstance(value, str):
        return (Replacement(value, distorts=FIGURES),) if value else ()
    if not is_list(value):
        raise BadInput("replaced must be a list of parts, each with the keys part, instead, parameters and distorts.")
    return tuple(map(_read_replacement, value))


def _read_replacement(value: Json) -> Replacement:
    if not is_mapping(value) or not {"part"} <= value.keys() <= {*Replacement._fields}:
        raise BadInput(f"a replaced part has the key part, and may have {', '.join(Replacement._fields[1:])}.")
    return Replacement(
        _text(value, "part"),
        _text(value, "instead"),
        checked_parameters(value.get("parameters", 0), "the parameters of a replaced part"),
        _figures(value.get("distorts", [])),
    )


def _text(value: JsonObject, name: str) -> str:
    if not isinstance(text := value.get(name, ""), str):
        raise BadInput(f"{name} of a replaced part must be a text.")
    return text


def _figures(names: Json) -> tuple[str, ...]:
    if not is_list(names) or any(name not in FIGURES for name in names):
        raise BadInput(f"distorts of a replaced part must be a list of {', '.join(FIGURES)}.")
    return tuple(names)


def checked_parameters(value: Json, name: str) -> int:
    """A number of parameters, which is negative where a replacement has more than the part.

    Raises:
        BadInput: it is not an integer, or larger than any model's.
    """
    if type(value) is not int or abs(value) > MAX_PARAMETERS:
        raise BadInput(f"{name} must be an integer of at most {MAX_PARAMETERS} in size.")
    return value
