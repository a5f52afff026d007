"""stdout and stderr that may be closed, full, or left by their reader: a command goes on without them, so that its run,
its report and its history are written all the same, and ends with the reason."""

import errno
import io
import os
import sys
from typing import Any, TextIO


class StreamFile(io.FileIO):
    """The file of a standard stream, which ignores everything after its first error."""

    error: OSError | None = None
    closed_before = False  # this process began without it

    def write(self, data: Any, /) -> int:
        if self.error is None:
            try:
                if self.closed_before:
                    raise OSError(errno.EBADF, "it is closed")
                return super().write(data)
            except OSError as error:
                self.error = error
        return len(data)


def guard_streams() -> "StreamFile | None":
    """Make stdout and stderr ignore everything after their first error, and return the file of stdout; None where
    somebody else has replaced stdout."""
    closed = [number for number in range(3) if not _is_open(number)]
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:  # no later file gets the number of a standard stream
        os.set_inheritable(number, True)
    os.close(number)
    if sys.stderr is sys.__stderr__:
        sys.stderr = _guarded(2, sys.stderr, 2 in closed)
    if sys.stdout is not sys.__stdout__:
        return None
    sys.stdout = _guarded(1, sys.stdout, 1 in closed)
    return sys.stdout.buffer.raw  # type: ignore[attr-defined]


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def _guarded(number: int, before: TextIO | None, closed: bool) -> TextIO:
    file = StreamFile(number, "w", closefd=False)
    file.closed_before = closed
    if before:
        before.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(file),
        encoding=before.encoding if before else "utf-8",
        errors=before.errors if before else "backslashreplace",
        line_buffering=number == 2 or file.isatty(),
    )
