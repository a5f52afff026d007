"""Flags of XLA's compilers, with their types, and the nearest known flag to an unknown one."""

import contextlib
import difflib
import mmap
import re
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

# Where the flags of each platform's compiler are found: (module, file in it).
LIBRARIES = {
    "cpu": ("jaxlib", "libjax_common.so"),
    "tpu": ("libtpu", "libtpu.so"),
    "gpu": ("jax_plugins.xla_cuda13", "xla_cuda_plugin.so"),
}
UNKNOWN_FLAG = re.compile(r"No such compile option: '([^']*)'")


def typed_flags(flags: Mapping[str, str]) -> dict[str, bool | int | float | str] | None:
    """Compiler flags with the types that some compilers require; None where there are no flags."""

    def value(text: str) -> bool | int | float | str:
        if text.lower() in ("true", "false"):
            return text.lower() == "true"
        for kind in (int, float):
            with contextlib.suppress(ValueError):
                return kind(text)
        return text

    return {name: value(text) for name, text in flags.items()} or None


def unknown_flag(message: str, platform: str) -> str | None:
    """The reason with the nearest known flags, where a compiler's message says that it does not know a flag."""
    found = UNKNOWN_FLAG.search(message)
    if not found:
        return None
    near = difflib.get_close_matches(found[1], flag_names(platform), n=3, cutoff=0.6)
    hint = f" Did you mean {' or '.join(near)}?" if near else ""
    return f"the {platform.upper()} compiler does not know the flag {found[1]!r}.{hint}"


def flag_names(platform: str) -> list[str]:
    """The names in a compiler's library that look like flags; empty where the library is unknown or not installed."""
    if platform not in LIBRARIES:
        return []
    module, file = LIBRARIES[platform]
    found = find_spec(module)
    folder = Path(found.origin).parent if found and found.origin else None
    if folder is None or not (folder / file).exists():
        return []
    with open(folder / file, "rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content:
        names = set(re.findall(rb"(?<![a-z])(xla_[a-z0-9_]{4,80})(?![a-z0-9_])", content))
    return sorted(name.decode() for name in names)
