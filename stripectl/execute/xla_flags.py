"""Flags of XLA's compilers: their types, and the message for a flag that a compiler does not know."""

import contextlib
import re
from collections.abc import Mapping

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


def why_flag_unknown(message: str, platform: str) -> str | None:
    """The reason, where a compiler's message says that it does not know a flag; None for any other message."""
    if not (found := UNKNOWN_FLAG.search(message)):
        return None
    return (
        f"the {platform.upper()} compiler does not know the flag {found[1]!r}. "
        "Check its spelling, and whether this version of the compiler has it."
    )
