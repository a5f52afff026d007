"""The end of a process's standard error, however long that is, without a file on disk."""

import sys
import threading
from typing import IO

from stripectl.util.plug_in_errors import is_debugging

MAX_TAIL_BYTES = 4000
END_S = 1.0  # for output that is still on its way after the process has ended; its own children may keep the pipe open


class StderrTail:
    """Reads a pipe to its end in a thread, and keeps the last part. Where tracebacks are shown, the whole output
    also goes to this process's standard error."""

    def __init__(self, pipe: IO[bytes]) -> None:
        self.pipe, self.kept = pipe, b""
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self) -> None:
        while data := self.pipe.read1(2**16):  # type: ignore[attr-defined]
            self.kept = (self.kept + data)[-MAX_TAIL_BYTES:]
            if is_debugging():
                sys.stderr.write(data.decode(errors="replace"))
                sys.stderr.flush()
        self.pipe.close()

    def last_line(self) -> str:
        """The last meaningful line of a process that has ended."""
        self.thread.join(END_S)
        lines = [line.strip() for line in self.kept.decode(errors="replace").splitlines()]
        return next((line[:300] for line in reversed(lines) if line and not line.startswith("*** ")), "")
