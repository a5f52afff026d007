"""Plug-ins of a kind: the modules of a folder of stripectl, and the entry points of other packages."""

import functools
import importlib
import pkgutil
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from stripectl.errors import BadInput
from stripectl.util.entry_points import entry_points, origin_of
from stripectl.util.files import unknown_name
from stripectl.util.plug_in_errors import plug_in_reason, show_traceback

T = TypeVar("T")


@functools.cache
def modules_in(folders: tuple[str, ...]) -> tuple[str, ...]:
    """The names of the modules in folders, sorted. They are listed once: a search asks for every plan."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(folders)))


@dataclass(frozen=True)
class Catalogue(Generic[T]):
    """Plug-ins by name: each module's value named `attribute`. A name of stripectl's own hides the same name of another
    package. A plug-in that fails to import is kept with its reason, so that `stripectl list` can show it."""

    package: str
    kind: str
    attribute: str
    _cache: dict[str, T] = field(default_factory=dict, repr=False)

    @property
    def part(self) -> str:
        """The kind as it is written in the names of entry points."""
        return self.package.rpartition(".")[2]

    def own_names(self) -> tuple[str, ...]:
        return modules_in(tuple(importlib.import_module(self.package).__path__))

    def names(self) -> tuple[str, ...]:
        own = self.own_names()
        others = [name for name in entry_points(self.part) if name not in own]
        return tuple(sorted([*own, *others])) if others else own

    def module(self, name: str) -> str:
        """The name of the module of a plug-in."""
        return f"{self.package}.{name}" if name in self.own_names() else entry_points(self.part)[name].module

    def origin(self, name: str) -> str:
        """The package that a plug-in comes from, with its version; empty for stripectl's own."""
        return "" if name in self.own_names() else origin_of(entry_points(self.part)[name])

    def load(self) -> tuple[dict[str, T], dict[str, str]]:
        """(name -> plug-in, name -> why it is broken)."""
        broken = {}
        for name in self.names():
            if name in self._cache:
                continue
            try:
                own = name in self.own_names()
                attribute = self.attribute if own else entry_points(self.part)[name].attr or self.attribute
                part = getattr(importlib.import_module(self.module(name)), attribute)
                if (said := getattr(part, "name", name)) != name:
                    raise ValueError(f"the {self.kind} has the name {said!r}, but must have {name!r}")
                self._cache[name] = part
            except Exception as error:  # a plug-in may be foreign code, and must not break the others
                show_traceback(error)
                broken[name] = plug_in_reason(error)
        return dict(self._cache), broken

    def summary(self, name: str) -> str:
        """The first line of a plug-in's docstring, without its name, and the package that it comes from."""
        text = (importlib.import_module(self.module(name)).__doc__ or "").strip().splitlines()
        origin = self.origin(name)
        return (text[0].partition(": ")[2] if text else "") + (f" (from {origin})" if origin else "")

    def __getitem__(self, name: str) -> T:
        if name in self._cache:
            return self._cache[name]
        good, broken = self.load()
        if name in broken:
            raise BadInput(f"the {self.kind} {name!r} cannot be loaded: {broken[name]}")
        if name not in good:
            raise unknown_name(self.kind, name, good)
        return good[name]
