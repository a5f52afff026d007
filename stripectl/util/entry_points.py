"""The parts that other packages add to stripectl, as entry points in their pyproject.toml:

[project.entry-points."stripectl.schemes"]
toy = "toy_package.toy"
"""

import functools
from collections.abc import Mapping
from importlib import metadata


@functools.cache
def entry_points(part: str) -> Mapping[str, metadata.EntryPoint]:
    """The entry points for a part, such as `schemes`, by name. Where two packages offer a name, the first package by
    name has it. They are looked up once."""
    found = sorted(metadata.entry_points(group=f"stripectl.{part}"), key=lambda each: (each.name, origin_of(each)))
    return {each.name: each for each in reversed(found)}


def origin_of(entry_point: metadata.EntryPoint) -> str:
    """The name and version of the package that an entry point comes from."""
    return f"{entry_point.dist.name} {entry_point.dist.version}" if entry_point.dist else "an unknown package"
