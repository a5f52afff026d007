"""Finds data by listing a folder (profiles, templates, plug-ins), reads YAML, and makes text safe to show.

`profiles/` and `templates/` are inside the package in a wheel and next to it in a checkout.
"""

import csv
import difflib
import functools
import importlib.util
import itertools
import math
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from stripectl.errors import BadInput
from stripectl.util.entry_points import entry_points, origin_of
from stripectl.util.regular_files import read_bytes

PACKAGE = Path(__file__).parents[1]
MAX_YAML_BYTES, MAX_YAML_VALUES, MAX_NUMBER_DIGITS = 2**18, 2**17, 1000
# Python errors that PyYAML lets through for values that are not what they look like: `2020-99-99`, `1e`.
YAML_ERRORS = (yaml.YAMLError, ValueError, ArithmeticError, LookupError, AttributeError, TypeError, RecursionError)
BIDI = r"\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # they change the order in which text is shown
UNSHOWN = re.compile(rf"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff{BIDI}]")
INSTEAD = "\ufffd"
NUMBERS = (int, float, type(None))
MAX_LINE_CHARACTERS = 600  # characters of a message


def data_folder(name: str) -> Path:
    """The folder `profiles` or `templates`, installed or in a checkout."""
    inside = PACKAGE / name
    return inside if inside.is_dir() else PACKAGE.parent / name


def table_rows(name: str) -> list[dict[str, str]]:
    """The rows of a table of figures in `profiles`, such as `published/attention`, without its comments."""
    text = (data_folder("profiles") / f"{name}.csv").read_text(encoding="utf-8").splitlines()
    return list(csv.DictReader(line for line in text if not line.startswith("#")))


def unknown_name(kind: str, name: str, known: Iterable[str]) -> BadInput:
    """The error for an unknown name: the nearest names, and all names."""
    known = sorted(known)
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    hint = f"Did you mean {' or '.join(near)}? " if near else ""
    return BadInput(f"unknown {kind} {name!r}. {hint}Known: {', '.join(known)}.")


class PlainYaml(yaml.SafeLoader):
    """YAML without tags, which give a text another type, and with at most MAX_YAML_VALUES values, because aliases make
    a few lines stand for more values than any memory holds."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event = self.peek_event()
        if getattr(event, "tag", None):
            raise yaml.YAMLError(f"line {event.start_mark.line + 1} has a tag (!). Write the value without it")
        return super().compose_node(parent, index)

    def get_single_node(self) -> yaml.Node | None:
        node = super().get_single_node()
        if node and count_values(node, {}) > MAX_YAML_VALUES:
            raise yaml.YAMLError(f"its aliases (*) stand for more than {MAX_YAML_VALUES:,} values, or for themselves")
        return node

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """A mapping, each of whose names occurs once."""
        node, seen = super().compose_mapping_node(anchor), set[str]()
        for name, _ in node.value:
            if isinstance(name, yaml.ScalarNode):
                if name.value in seen:
                    raise yaml.YAMLError(f"line {name.start_mark.line + 1}: the name {name.value!r} occurs twice")
                seen.add(name.value)
        return node

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        """An integer with few enough digits for Python to print it: `1:59:59:59...` counts in sixties."""
        if len(node.value) > MAX_NUMBER_DIGITS:
            raise yaml.constructor.ConstructorError(None, None, "a number has too many digits", node.start_mark)
        return super().construct_yaml_int(node)


PlainYaml.add_constructor("tag:yaml.org,2002:int", PlainYaml.construct_yaml_int)


def count_values(node: yaml.Node, known: dict[yaml.Node, float]) -> float:
    """The number of values in a YAML node, where an alias counts as often as it occurs; infinite in a node that
    contains itself."""
    if node not in known:
        known[node] = math.inf
        parts = node.value if isinstance(node, yaml.CollectionNode) else ()
        every = itertools.chain.from_iterable(part if isinstance(part, tuple) else (part,) for part in parts)
        known[node] = 1 + sum(count_values(each, known) for each in every)
    return known[node]


def load_yaml(path: Path, what: str) -> Mapping[str, Any]:
    """The mapping in a YAML file.

    Raises:
        BadInput: the file is missing, unreadable, too large, not YAML, or not a mapping.
    """
    try:
        content = printable(yaml.load(read_bytes(path, MAX_YAML_BYTES), PlainYaml))
    except OSError as error:
        raise BadInput(f"cannot read the {what} {path}: {error.strerror}.") from error
    except YAML_ERRORS as error:
        raise BadInput(f"the {what} {path} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise BadInput(f"the {what} {path} is not a mapping of names to values.")
    return content


def load_profile(kind: str, folder: str, name: str) -> tuple[Path, Mapping[str, Any]]:
    """A YAML profile by the name of a file in `profiles/FOLDER`, or by the path of a file."""
    known, what = profile_names(folder), f"{kind} profile"
    if name in known:
        path = profile_path(folder, name)
        return path, _shipped(path, what)
    if os.sep not in name and not name.endswith((".yaml", ".yml")):
        raise unknown_name(kind, name, known)
    return Path(name), load_yaml(Path(name), what)


@functools.cache
def _shipped(path: Path, what: str) -> Mapping[str, Any]:
    """A profile of an installed package, which does not change while it runs."""
    return load_yaml(path, what)


@functools.cache
def profile_names(folder: str) -> tuple[str, ...]:
    """The names of the profiles in `profiles/FOLDER` and in the entry points of other packages."""
    return tuple(sorted({*own_profiles(folder), *entry_points(folder)}))


@functools.cache
def own_profiles(folder: str) -> Mapping[str, Path]:
    """The profiles of stripectl itself, by name."""
    return {path.stem: path for path in (data_folder("profiles") / folder).glob("*.yaml")}


def profile_origin(folder: str, name: str) -> str:
    """The package that a profile comes from, with its version; empty for the profiles of stripectl."""
    return "" if name in own_profiles(folder) else origin_of(entry_points(folder)[name])


def profile_path(folder: str, name: str) -> Path:
    """The file of a profile. An entry point of another package names the module whose folder has NAME.yaml.

    Raises:
        BadInput: the module of an entry point is not installed.
    """
    if name in own_profiles(folder):
        return own_profiles(folder)[name]
    module = entry_points(folder)[name].module
    try:
        spec = importlib.util.find_spec(module)
    except ImportError:
        spec = None
    if not spec or not spec.origin:
        raise BadInput(f"cannot read the profile {name} because its package has no module {module}.")
    return Path(spec.origin).parent / f"{name}.yaml"


def printable(value: Any) -> Any:
    """Nested data with its names and texts made safe to print."""
    if isinstance(value, str):
        return value if value.isprintable() else UNSHOWN.sub(INSTEAD, value)
    if isinstance(value, dict):
        return {printable(name): each if isinstance(each, NUMBERS) else printable(each) for name, each in value.items()}
    if isinstance(value, list):
        return [each if isinstance(each, NUMBERS) else printable(each) for each in value]
    return value


def one_line(text: str) -> str:
    """A message in one line; a long message, which has input in its middle, keeps both ends."""
    line = "".join(each if each.isprintable() else INSTEAD for each in " ".join(text.split()))
    half = MAX_LINE_CHARACTERS // 2
    return line if len(line) <= MAX_LINE_CHARACTERS else f"{line[:half]} … {line[-half:]}"


def utf8(text: str) -> str:
    """The text with `?` for characters that UTF-8 cannot hold, because JSON may contain half a character."""
    return text.encode("utf-8", "replace").decode()
