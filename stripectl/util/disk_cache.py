"""Results that took long to compute, kept on disk: one JSON file per key."""

import contextlib
import functools
import hashlib
import json
import os
from pathlib import Path
from typing import Any

from stripectl.errors import BadInput
from stripectl.util.files import PACKAGE
from stripectl.util.output import write_atomically


def folder() -> Path | None:
    """The folder of caches by the XDG base directory specification; None for a user without a home."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "stripectl"
    except RuntimeError:
        return None


@functools.cache
def program_digest() -> str:
    """A digest of all sources of stripectl, because any of them may change what it stores."""
    digest = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*.py")):
        digest.update(path.relative_to(PACKAGE).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def path_of(key: Any) -> Path | None:
    """The file of a key, which is any JSON value; None where there is no cache."""
    text, place = json.dumps([program_digest(), key], sort_keys=True), folder()
    return place and place / f"{hashlib.sha256(text.encode()).hexdigest()}.json"


def load(key: Any) -> Any:
    """The stored value, or None where nothing is stored or it cannot be read."""
    path = path_of(key)
    try:
        return path and json.loads(path.read_text())
    except (OSError, ValueError):
        return None


def store(key: Any, value: Any) -> None:
    """Store a value; do nothing where that is not possible."""
    with contextlib.suppress(BadInput):
        if path := path_of(key):
            write_atomically(path, json.dumps(value))
