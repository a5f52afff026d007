"""The command line as a function: where a process of its own is not the subject, a command runs in the test's."""

import contextlib
import io
from typing import NamedTuple

from stripectl.cli import main


class Ended(NamedTuple):
    """A command's exit code, and the text that it wrote."""

    returncode: int
    stdout: str
    stderr: str


def stripectl(*arguments: str) -> Ended:
    out, error = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        try:
            main(list(arguments))
            code = 0
        except SystemExit as done:
            code = int(done.code or 0)
    return Ended(code, out.getvalue(), error.getvalue())
