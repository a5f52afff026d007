"""Processes of this machine, and waiting for what they do."""

import contextlib
import time
from pathlib import Path


def alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


def children(pid: int, thread: int | None = None) -> list[int]:
    """Processes that a thread started, without the process that draws charts; without a thread, the main thread."""
    found = list[int]()
    with contextlib.suppress(OSError):
        for child in Path(f"/proc/{pid}/task/{thread or pid}/children").read_text().split():
            with contextlib.suppress(OSError):
                if b"drawer.py" not in Path(f"/proc/{child}/cmdline").read_bytes():
                    found.append(int(child))
    return found


def wait_for(condition, limit_s: float = 240.0) -> bool:
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True
