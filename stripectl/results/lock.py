"""One writer per folder: an advisory lock, which ends with the process that holds it, however that ends.

The lock is on a hidden file that names its holder. A process that ends in order removes the file; the file of a killed
process is taken over.
"""

import contextlib
import fcntl
import json
import os
import socket
from collections.abc import Generator
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

from stripectl.errors import BadInput
from stripectl.util.regular_files import open_regular

FILE = ".stripectl.lock"
ATTEMPTS = 10  # to make the folder while other processes remove it
MAX_BYTES = 4096  # of the holder's name


@contextlib.contextmanager
def writing_in(folder: Path, *, new: bool = False) -> Generator[None, None, None]:
    """Be the only process that writes in a folder, which is created where needed, and removed again if it stays empty;
    with `new` it must not exist. On a file system without locks there is no lock.

    Raises:
        BadInput: it cannot be written, or another process writes in it.
        FileExistsError: it exists and should be new.
    """
    whole = folder.absolute()
    absent = [each for each in (whole, *whole.parents) if not each.exists()]
    file = None
    try:
        try:
            file = _taken(folder, new)
            _sign(file)
        except OSError as error:
            if new and isinstance(error, FileExistsError):
                absent = []  # another process has made it since, and may not have locked it yet
                raise
            hint = "Try --output with a folder you can write."
            raise BadInput(f"cannot write in {folder}: {error.strerror}. {hint}") from error
        yield
    finally:
        if file:
            with contextlib.suppress(OSError), file:
                if _is_still(file, folder / FILE):
                    (folder / FILE).unlink()
        with contextlib.suppress(OSError):  # a folder with content stays
            for each in absent:
                each.rmdir()


def _taken(folder: Path, new: bool) -> IO[str]:
    """The file, locked by this process, in the folder that this makes where needed."""
    while True:
        file = _opened(folder, new)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with file:
                raise BadInput(f"{_busy(folder, file)} Wait for it or end it, or choose another --output.") from None
        except OSError:
            return file  # this file system has no locks
        if _is_still(file, folder / FILE):
            return file
        file.close()  # its owner has removed it meanwhile


def _opened(folder: Path, new: bool, attempts: int = ATTEMPTS) -> IO[str]:
    try:
        folder.mkdir(parents=True, exist_ok=not new)
        number = open_regular(folder / FILE, os.O_RDWR | os.O_APPEND | os.O_CREAT)
        return open(number, "a+", encoding="utf-8", errors="replace")
    except FileNotFoundError:  # another process has removed the folder, or a folder above it, which was empty
        if attempts == 1:
            raise
        return _opened(folder, new, attempts - 1)


def _is_still(file: IO[str], path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _sign(file: IO[str]) -> None:
    """Write the holder's name; a disk that has no room for it has none for a run either."""
    since = datetime.now(UTC).isoformat(sep=" ", timespec="seconds")
    file.truncate(0)
    json.dump({"pid": os.getpid(), "host": socket.gethostname(), "since": since}, file)
    file.flush()


def _busy(folder: Path, file: IO[str]) -> str:
    try:
        file.seek(0)
        holder = json.loads(file.read(MAX_BYTES))
        who = f": process {holder['pid']} on {holder['host']}, since {holder['since']}"
    except (OSError, ValueError, KeyError, TypeError, RecursionError):  # the holder has not written its name yet
        who = ""
    return f"another stripectl process writes in {folder}{who}."
