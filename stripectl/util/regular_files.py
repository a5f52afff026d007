"""Files that anybody may have put in their place, opened only if they are regular files.

A FIFO would wait for its writer, a device may have no end, and a link may lead to a file of the user that a run from
somebody else must neither read nor change.
"""

import errno
import os
import stat
from pathlib import Path

WRITING = os.O_WRONLY | os.O_RDWR


def open_regular(path: Path, flags: int = os.O_RDONLY, *, follow: bool = False) -> int:
    """The descriptor of a regular file, opened with `flags`; `follow` says whether the path may be a link. A file that
    is opened for writing has no second name, which may be outside the folder.

    Raises:
        OSError: it cannot be opened, or is something else; `strerror` says which.
    """
    without_waiting = os.O_NONBLOCK | os.O_CLOEXEC  # of a FIFO for its other end
    try:
        number = os.open(path, flags | without_waiting | (0 if follow else os.O_NOFOLLOW), 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP and not follow:
            raise OSError(errno.ELOOP, "it is a link", str(path)) from error
        raise
    try:
        check_regular(os.fstat(number), flags)
    except OSError:
        os.close(number)
        raise
    return number


def check_regular(found: os.stat_result, flags: int = os.O_RDONLY) -> None:
    """Refuse what is not a regular file.

    Raises:
        OSError: it is something else; `strerror` says which.
    """
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if stat.S_ISLNK(found.st_mode):
        raise OSError(errno.ELOOP, "it is a link")
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file")
    if flags & WRITING and found.st_nlink > 1:
        raise OSError(errno.EMLINK, "it has a second name (a hard link)")


def is_regular(path: Path) -> bool:
    """Whether a path is a regular file, and no link to one."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except (OSError, ValueError):
        return False


def read_bytes(path: Path, most: int, *, follow: bool = True) -> bytes:
    """The content of a regular file, at most `most` bytes.

    Raises:
        OSError: it cannot be read, or is not a regular file.
        ValueError: it is larger, or its name is not possible.
    """
    with open(open_regular(path, follow=follow), "rb") as file:
        large = os.fstat(file.fileno()).st_size > most  # and perhaps sparse: it is not read
        content = b"" if large else file.read(most + 1)
    if large or len(content) > most:
        raise ValueError(f"it is larger than {most >> 10} KiB")
    return content
