"""Errors of plug-ins: their place in the plug-in's own code, and with `--verbose` (or STRIPECTL_DEBUG=1) all of the
traceback."""

import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stripectl.util.entry_points import entry_points

DEBUG = "STRIPECTL_DEBUG"
# Packages of plug-ins by their kind, as it is written in the names of entry points.
PACKAGES = {
    "schemes": "stripectl.schemes",
    "kernels": "stripectl.kernels",
    "layouts": "stripectl.layouts",
    "recurrences": "stripectl.core.recurrences",
    "integrations": "stripectl.export.integrations",
    "families": "stripectl.models.families",
    "notes": "stripectl.analysis.notes",
}


def is_debugging() -> bool:
    """Whether tracebacks are shown."""
    return os.environ.get(DEBUG, "") not in ("", "0")


def show_traceback(error: BaseException) -> None:
    """Print the traceback on standard error, where tracebacks are shown."""
    if is_debugging():
        traceback.print_exception(error)
        sys.stderr.flush()


def plug_in_reason(error: BaseException) -> str:
    """The type of an error, its message, and the innermost line of a plug-in that it passed through."""
    return ": ".join(filter(None, (type(error).__name__, str(error)))) + place_in_plug_in(error)


def place_in_plug_in(error: BaseException) -> str:
    """`, at schemes/toy.py:12`: the innermost line of a plug-in that an error passed through; empty without one."""
    others = {each.module.partition(".")[0] for kind in PACKAGES for each in entry_points(kind).values()}
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        module = str(frame.f_globals.get("__name__"))
        if module.partition(".")[0] in others or module.startswith(tuple(f"{each}." for each in PACKAGES.values())):
            file = Path(frame.f_code.co_filename)
            return f", at {file.parent.name}/{file.name}:{line}"
    return ""


def wrong_result(name: str, function: Callable[..., Any], wanted: str, found: object) -> TypeError:
    """The error of a plug-in's function, known by `name`, that returned a value of another type than it must. No line
    of the plug-in is in its traceback, so its message has the function's place."""
    code = getattr(function, "__code__", None)
    place = ""
    if code:
        file = Path(code.co_filename)
        place = f" at {file.parent.name}/{file.name}:{code.co_firstlineno}"
    return TypeError(f"{name}{place} must return {wanted}, not {type(found).__name__}")
