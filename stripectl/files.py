"""Finds what is found by listing a folder (profiles, templates, plug-ins) and writes files so that none is ever half.

`profiles/` and `templates/` lie inside the package in a wheel and beside it in a checkout.
"""

import contextlib
import difflib
import functools
import importlib
import os
import pkgutil
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from stripectl import BadInput

PACKAGE = Path(__file__).parent


def data_folder(name: str) -> Path:
    """The folder `profiles` or `templates`, installed or in a checkout."""
    inside = PACKAGE / name
    return inside if inside.is_dir() else PACKAGE.parent / name


def unknown(kind: str, name: str, known: Iterable[str]) -> BadInput:
    """The error for a name that is not known: the nearest names, and all of them."""
    known = sorted(known)
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    hint = f"Did you mean {' or '.join(near)}? " if near else ""
    return BadInput(f"unknown {kind} {name!r}. {hint}Known: {', '.join(known)}.")


def load_yaml(path: Path, what: str) -> Mapping[str, Any]:
    """The mapping in a YAML file.

    Raises:
        BadInput: the file is missing, unreadable, not YAML, or not a mapping.
    """
    try:
        content = yaml.safe_load(path.read_text())
    except OSError as error:
        raise BadInput(f"cannot read the {what} {path}: {error.strerror}.") from error
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise BadInput(f"the {what} {path} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise BadInput(f"the {what} {path} is not a mapping of names to values.")
    return content


def profile(kind: str, folder: str, name: str) -> tuple[Path, Mapping[str, Any]]:
    """A YAML profile by the name of a file in `profiles/FOLDER`, or by the path of a file."""
    known = {path.stem: path for path in (data_folder("profiles") / folder).glob("*.yaml")}
    looks_like_path = os.sep in name or name.endswith((".yaml", ".yml"))
    if name not in known and not looks_like_path:
        raise unknown(kind, name, known)
    path, what = known.get(name) or Path(name), f"{kind} profile"
    return path, _shipped(path, what) if name in known else load_yaml(path, what)


@functools.cache
def _shipped(path: Path, what: str) -> Mapping[str, Any]:
    """A profile of this package, which nobody changes while it runs."""
    return load_yaml(path, what)


def profile_names(folder: str) -> list[str]:
    return sorted(path.stem for path in (data_folder("profiles") / folder).glob("*.yaml"))


@dataclass(frozen=True)
class Catalogue:
    """Plug-ins of a kind, found by listing a package: each module's value named `attribute`. One that fails to import
    is kept with its reason, so that `stripectl list` can show it."""

    package: str
    kind: str
    attribute: str
    _cache: dict[str, Any] = field(default_factory=dict, repr=False)

    def names(self) -> list[str]:
        package = importlib.import_module(self.package)
        return sorted(module.name for module in pkgutil.iter_modules(package.__path__))

    def load(self) -> tuple[dict[str, Any], dict[str, str]]:
        """(name -> plug-in, name -> why it is broken)."""
        broken = {}
        for name in self.names():
            if name in self._cache:
                continue
            try:
                module = importlib.import_module(f"{self.package}.{name}")
                self._cache[name] = getattr(module, self.attribute)
            except Exception as error:  # a plug-in may be anybody's code; one that breaks must not take the rest along
                broken[name] = f"{type(error).__name__}: {error}"
        return dict(self._cache), broken

    def summary(self, name: str) -> str:
        """The first line of a plug-in's docstring, without its name."""
        text = (importlib.import_module(f"{self.package}.{name}").__doc__ or "").strip().splitlines()
        return text[0].partition(": ")[2] if text else ""

    def __getitem__(self, name: str) -> Any:
        if name in self._cache:
            return self._cache[name]
        good, broken = self.load()
        if name in broken:
            raise BadInput(f"the {self.kind} {name!r} cannot be loaded: {broken[name]}")
        if name not in good:
            raise unknown(self.kind, name, good)
        return good[name]


def ensure_writable(folder: Path) -> None:
    """Fail now, not after minutes of measuring, where `folder` cannot be made or written; leaves nothing behind.

    Raises:
        BadInput: it cannot.
    """
    there = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        raise BadInput(f"cannot write in {there}: {error.strerror}. Try --out with a folder you can write.") from error


def write_atomically(path: Path, text: str) -> None:
    """Write-then-rename: a reader, or a run killed at any moment, sees the old file or the new one, never half of one.

    Raises:
        BadInput: the folder cannot be written.
    """
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", dir=path.parent, prefix=f".{path.name}.", delete=False
        ) as file:
            temporary = file.name
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except OSError as error:
        if temporary:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        raise BadInput(f"cannot write {path}: {error.strerror}. Choose a place you can write.") from error
