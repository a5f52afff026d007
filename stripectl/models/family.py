"""A family of models: how their config.json is read. `families` finds the families by listing their folder."""

import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from stripectl.core.replacement import Replacement
from stripectl.errors import BadInput
from stripectl.util.catalogue import Catalogue
from stripectl.util.json import is_list, is_mapping

MAX_CONFIG_NUMBER, MAX_CONFIG_LAYERS = 2**30, 2**12  # of a size, and of layers, each of which has a mask


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A model of a family: the fields of `Model` without its name, the mask of each layer (`causal`, `sliding:4096`, or
    `linear` for a linear layer), the replaced parts, and the parameters of norms, biases and convolutions, which
    stripectl does not count."""

    sizes: Mapping[str, Any]
    masks: Sequence[str]
    replaced: Sequence[Replacement]
    vector_parameters: int


@dataclass(frozen=True)
class ConfigKeys:
    """The content of a config.json, by key. An absent key has its default; `aliases` are other names of a key.

    Every method raises:
        BadInput: the value has the wrong type, or is out of range.
    """

    path: Path
    content: Mapping[str, Any]
    defaults: Mapping[str, Any]
    aliases: Mapping[str, str] = field(default_factory=dict[str, str])

    def value(self, name: str) -> Any:
        names = [name, *([self.aliases[name]] if name in self.aliases else [])]
        return next((self.content[each] for each in names if each in self.content), self.defaults.get(name))

    def refuse(self, name: str, wanted: str) -> BadInput:
        shown = reprlib.repr(self.value(name))
        return BadInput(f"the model {self.path} has {name}: {shown}, but it must be {wanted}.")

    def size(self, name: str, least: int = 1) -> int:
        most = MAX_CONFIG_LAYERS if name == "num_hidden_layers" else MAX_CONFIG_NUMBER
        value = self.value(name)
        if type(value) is not int or not least <= value <= most:
            raise self.refuse(name, f"an integer from {least} to {most}")
        return value

    def optional_size(self, name: str) -> int | None:
        return None if self.value(name) is None else self.size(name)

    def flag(self, name: str) -> bool:
        value = self.value(name)
        if value not in (None, True, False) or (isinstance(value, int) and not isinstance(value, bool)):
            raise self.refuse(name, "true or false")
        return bool(value)

    def is_set(self, name: str) -> bool:
        """Whether a number that switches a part on is present."""
        value = self.value(name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise self.refuse(name, "a number or null")
        return bool(value)

    def number(self, name: str) -> float | None:
        """A positive number; None where it is absent or null."""
        value = self.value(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= MAX_CONFIG_NUMBER:
            raise self.refuse(name, f"a positive number of at most {MAX_CONFIG_NUMBER}")
        return value

    def layer_kinds(self, name: str, usual: Sequence[str], known: Sequence[str]) -> Sequence[str]:
        """One word per layer; `usual` where the file has no such list."""
        value, layers = self.value(name), self.size("num_hidden_layers")
        if value is None:
            return usual
        if not is_list(value) or len(value) != layers or any(each not in known for each in value):
            raise self.refuse(name, f"a list of {layers} values, one per layer, each {' or '.join(known)}")
        return value

    def part(self, name: str) -> "ConfigKeys":
        """The mapping under a key, without defaults; empty where the key is absent."""
        value = self.value(name)
        if value is not None and not is_mapping(value):
            raise self.refuse(name, "a mapping of keys to values")
        return ConfigKeys(self.path, value or {}, {})


class Family(NamedTuple):
    """How the config.json of a `model_type` is read: a function from its keys, the defaults of keys that a file may
    omit, and other names of keys."""

    read: Callable[[ConfigKeys], ModelConfig]
    defaults: Mapping[str, Any]
    aliases: Mapping[str, str] = {}


families: Catalogue[Family] = Catalogue("stripectl.models.families", "family of models", "family")
