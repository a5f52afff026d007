"""The process that draws charts (`drawer`): it starts with the first chart and ends with this process."""

import atexit
import contextlib
import functools
import importlib.util
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from stripectl.errors import BadInput
from stripectl.workers.process import signal_name

END_S = 5.0  # for which its end is waited for
PROGRAM = Path(__file__).with_name("drawer.py")


def draw_svg(chart: Mapping[str, object]) -> str:
    """A chart of Vega-Lite as SVG.

    Raises:
        BadInput: the drawing process ended.
        ValueError: it is no chart.
    """
    process = start_drawer()
    assert process.stdin and process.stdout
    try:
        process.stdin.write(json.dumps(chart) + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
    except BrokenPipeError:
        line = ""
    except BaseException:  # an interrupt: the answer to this chart must not be taken for the next one's
        _end(process)
        raise
    if not line:
        raise BadInput(
            f"cannot draw the report because the process that draws its charts {_end(process)}. Try ulimit -v "
            "unlimited, or stripectl report on another machine."
        )
    answer = json.loads(line)
    if "svg" not in answer:
        raise ValueError(answer["error"])
    return answer["svg"]


@functools.cache
def start_drawer() -> "subprocess.Popen[str]":
    """The drawing process."""
    library = importlib.util.find_spec("vl_convert")
    assert library and library.origin
    made = subprocess.Popen(
        [sys.executable, "-I", "-S", str(PROGRAM), str(Path(library.origin).parents[1])],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        encoding="utf-8",
        start_new_session=True,  # Ctrl-C goes to this process
    )
    atexit.register(_end, made)
    return made


def _end(process: "subprocess.Popen[str]") -> str:
    """End the process, and return how it ended."""
    start_drawer.cache_clear()
    atexit.unregister(_end)
    if process.stdin and process.stdout:
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()  # at which it ends
        process.stdout.close()
    try:
        code = process.wait(END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        code = process.wait()
    return f"was killed by {signal_name(-code)}" if code < 0 else f"exited with code {code}"
