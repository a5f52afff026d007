"""Functions that take the fields of a class of options as keyword arguments."""

import functools
import inspect
import re
import reprlib
from collections.abc import Callable, Mapping
from types import NoneType, UnionType
from typing import Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

from stripectl.core.plan import Plan
from stripectl.errors import BadInput
from stripectl.util.files import unknown_name
from stripectl.util.python_words import python_words

P = ParamSpec("P")
Options = TypeVar("Options")
Result = TypeVar("Result")
MAY_BE_EMPTY = ("plan", "mesh", "xla_flag")  # options that the command line repeats, perhaps never
ONLY_OF_CALLS = ("output", "resume", "progress")  # arguments that a run does not record


def keywords_of(
    options: Callable[P, Options],
) -> Callable[[Callable[[Options, str], Result]], Callable[P, Result]]:
    """Have a function take the fields of `options`, a dataclass, as arguments, with their names, types and defaults for
    editors, type checkers and `help`. The function itself gets the options, and its call as text.
    """
    signature, hints = inspect.signature(options), get_type_hints(options, localns={"Plan": Plan})
    typed = [each.replace(annotation=hints[name]) for name, each in signature.parameters.items()]

    def decorate(function: Callable[[Options, str], Result]) -> Callable[P, Result]:
        name = f"stripectl.{function.__name__}"

        @functools.wraps(function)
        @python_words({})
        def call(*args: P.args, **given: P.kwargs) -> Result:
            told = dict(zip(signature.parameters, args, strict=False)) | given
            for argument, value in told.items():
                if argument not in hints:
                    raise unknown_name(f"argument of {name}:", argument, hints)
                check_type(argument, value, hints[argument])
            signature.bind(*args, **given)  # its error speaks of arguments, not of a class
            shown = {key: str(value) if isinstance(value, Plan) else value for key, value in told.items()}
            arguments = ", ".join(
                f"{key}={value!r}" for key, value in shown.items() if value is not None and key not in ONLY_OF_CALLS
            )
            return function(options(*args, **given), f"{name}({arguments})")

        call.__signature__ = inspect.signature(function).replace(parameters=typed)  # type: ignore[attr-defined]
        return call

    return decorate


def check_type(argument: str, value: Any, hint: Any) -> None:
    """Check the type of an argument's value.

    Raises:
        BadInput: the argument has another type, or the value is an empty list or a whole number below 1.
    """
    if type(value) in (list, tuple) and not value and argument not in MAY_BE_EMPTY:
        raise BadInput(f"cannot use {argument}=[] because it is empty. Omit {argument}.")
    if type(value) is int and value < 1:
        raise BadInput(f"cannot use {argument}={value} because {argument} is at least 1.")
    if not has_type(value, hint):
        if get_origin(hint) is Literal:
            raise unknown_name(argument, str(value), get_args(hint))
        types = [inspect.formatannotation(each) for each in get_args(hint) or [hint] if each is not NoneType]
        shown = re.sub(r"\b[a-z]+\.(abc\.)?", "", " | ".join(types))
        raise BadInput(f"cannot use {argument}={reprlib.repr(value)} because {argument} is {shown}.")


def has_type(value: Any, hint: Any) -> bool:
    """Whether a value is of a class, of a type of a union, a literal, or a container of such values."""
    kind, parts = get_origin(hint), get_args(hint)
    if kind in (Union, UnionType):
        return any(has_type(value, part) for part in parts)
    if kind is Literal:
        return value in parts
    if kind is None:
        return isinstance(value, (int, float) if hint is float else hint) and (type(value) is bool) <= (hint is bool)
    if isinstance(value, str) or not issubclass(type(value), kind):
        return False
    if kind is tuple:
        return len(value) == len(parts) and all(map(has_type, value, parts))
    values, kind_of_value = (value.items(), tuple[parts]) if kind is Mapping else (value, parts[0])
    return all(has_type(each, kind_of_value) for each in values)
