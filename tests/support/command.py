"""The command line as a function: where a process of its own is not the subject, a command runs in the test's."""

import contextlib
import io
from pathlib import Path
from typing import NamedTuple

import pytest

from stripectl.cli import main

ON_PAPER = ["bench", "--target", "v5p:8", "--method", "simulated", "--quiet", "--output", "run"]
BENCH = "bench --seqlen 8k --target v5e:8 --method simulated --pass forward --layout striped --quiet"
EXAMPLES = Path(__file__).parents[2] / "examples" / "ci"
SMALL = "--heads 1 --head-dim 16 --tile 128 --layout contiguous,striped --quiet"


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


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as done:
        main(list(arguments))
    return int(done.value.code or 0)
