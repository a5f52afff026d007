"""The type of every path on the command line, which is checked before a command does anything."""

import errno
import os
from pathlib import Path
from typing import Any

import click

from stripectl.errors import BadInput

MAX_NAME_BYTES = 255  # of one name in a path, as in Linux


class CheckedPath(click.Path):
    """A path that the system can have. What is there, and whether it can be read or written, is found by its user."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        path = str(value)
        if reason := why_impossible(path):
            name = param.opts[-1] if isinstance(param, click.Option) else "argument"
            raise BadInput(f"cannot use the {name} {path!r} because {reason}. Try another path.")
        return super().convert(value, param, ctx)


PATH = CheckedPath()


def why_impossible(path: str) -> str | None:
    """Why no file or folder can have a path; None where one can, or does."""
    if not path:
        return "it is empty"
    if any(len(os.fsencode(name)) > MAX_NAME_BYTES for name in path.split(os.sep)):
        return os.strerror(errno.ENAMETOOLONG)
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        return error.strerror
    except ValueError:
        return "it holds a zero byte"
    return None


def check_current_folder() -> None:
    """Refuse to work in a folder that somebody has removed meanwhile.

    Raises:
        BadInput: it does not exist.
    """
    try:
        os.getcwd()
    except OSError as error:
        raise BadInput(f"cannot work in the current folder because {error.strerror}. Try cd to another.") from error
