"""Everything that is written to a path: files so that none is ever incomplete, and devices and pipes as they are.

`write_atomically` is for files of stripectl's own, such as a run.json: it makes or replaces a regular file, and refuses
anything else in its place. `write_output` is for the path of an option, which may also be a FIFO, a device, or an open
file of this process: `/dev/stdout`, or `>(...)` of a shell. Neither follows a link to a file, because a link in
somebody's folder may lead to any file of the user; the folders of a path may be links.
"""

import contextlib
import errno
import os
import secrets
import stat
import sys
import tempfile
import time
from pathlib import Path

from stripectl.errors import BadInput
from stripectl.util.regular_files import check_regular

WAIT_S, EVERY_S = 5.0, 0.05  # for a process that reads a FIFO
MAX_LINKS = 40  # of one path, as in Linux


def write_output(path: Path, text: str) -> None:
    """Write the file of an option: make or replace a regular file, or write into the device, FIFO or open file that is
    there.

    Raises:
        BadInput: it cannot be written, or is a link to a file.
        BrokenPipeError: its reader has gone.
    """
    try:
        number = _open_special(path)
    except OSError as error:
        raise cannot_write(path, error) from error
    if number is None:
        write_atomically(path, text)
        return
    try:
        with open(number, "w", encoding="utf-8", newline="") as file:
            file.write(text)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise cannot_write(path, error) from error


def _open_special(path: Path) -> int | None:
    """A descriptor for writing into what is there; None where that is a regular file, nothing, or wrong."""
    if (own := own_descriptor(path)) is not None:
        with contextlib.suppress(AttributeError, ValueError):  # no stdout
            sys.stdout.flush()  # which may be the same file
        return os.dup(own)
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return None
    if stat.S_ISREG(mode) or stat.S_ISLNK(mode) or stat.S_ISDIR(mode):
        return None
    until_s = time.monotonic() + WAIT_S * stat.S_ISFIFO(mode)
    while True:
        try:
            number = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC | os.O_NOFOLLOW)
            break
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            if time.monotonic() > until_s:
                raise OSError(errno.ENXIO, "no process reads it") from error
        time.sleep(EVERY_S)
    os.set_blocking(number, True)
    return number


def own_descriptor(path: Path) -> int | None:
    """The number of this process's open file that a path of the system is another name of, such as /dev/stdout."""
    for _ in range(MAX_LINKS):
        folder = os.path.realpath(path.parent)
        if folder == f"/proc/{os.getpid()}/fd" and path.name.isdecimal():
            return int(path.name)
        if not folder.startswith(("/dev", "/proc")) or not path.is_symlink():
            return None
        path = path.parent / path.readlink()
    return None


def write_atomically(path: Path, text: str) -> None:
    """Write a temporary file and rename it, so that a reader always sees the old or the new file, never half of one. A
    new file has the mode that the user's umask gives; a replaced file keeps its mode.

    Raises:
        BadInput: the folder cannot be written, or the path is something else than a regular file.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        before = _replaceable(path)
        number = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        with open(number, "w", encoding="utf-8") as file:
            if before:
                os.fchmod(number, stat.S_IMODE(before.st_mode))
            file.write(text)
            file.flush()
            os.fsync(number)
        os.replace(temporary, path)
        _sync_folder(path.parent)
    except OSError as error:
        raise cannot_write(path, error) from error
    finally:
        with contextlib.suppress(OSError):  # the file is in its place already, or was not made
            os.unlink(temporary)


def _replaceable(path: Path) -> os.stat_result | None:
    """The regular file at a path; None where there is nothing.

    Raises:
        OSError: something else is there.
    """
    try:
        found = path.lstat()
    except FileNotFoundError:
        return None
    check_regular(found)
    return found


def cannot_write(path: Path, error: OSError) -> BadInput:
    return BadInput(f"cannot write {path}: {error.strerror}. Fix this, or choose another place.")


def ensure_writable(folder: Path, option: str = "--output") -> None:
    """Fail now, not after minutes of measuring, where `folder`, which an option names, cannot be made or written.
    Leaves nothing behind.

    Raises:
        BadInput: it cannot be written.
    """
    there = next(parent for parent in (folder, *folder.absolute().parents) if os.path.exists(parent))
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        raise BadInput(
            f"cannot write in {there}: {error.strerror}. Try {option} with a folder you can write."
        ) from error


def _sync_folder(folder: Path) -> None:
    """Make the renaming survive a loss of power, where the file system supports this."""
    with contextlib.suppress(OSError):
        number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


def remove_leftovers(folder: Path, *names: str) -> None:
    """Remove temporary files that writers of these files left when they were killed."""
    for name in names:
        for path in folder.glob(f".{name}.????????"):
            with contextlib.suppress(OSError):
                path.unlink()
