"""stripectl: which sequence-parallel attention, which tile sizes, which mesh, and why.

A scheme is a short program over `attend` and `comm`. A layout says which positions of the sequence a shard holds. A
kernel computes a tile. Bind them to JAX and the program runs or compiles; bind them to clocks and the same program is
simulated.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stripectl.layer.attention import positions, sequence_parallel_attention

__version__ = "0.1.0"
__all__ = ["BadInput", "Missing", "StripectlError", "__version__", "positions", "sequence_parallel_attention"]


def __getattr__(name: str) -> Any:
    """What needs JAX is imported when it is asked for, so that the command line starts without it."""
    if name not in ("positions", "sequence_parallel_attention"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from stripectl.layer import attention

    return getattr(attention, name)


class StripectlError(Exception):
    """Something the user can act on; the command line prints it as one line and exits with `exit_code`."""

    exit_code = 1


class BadInput(StripectlError):
    """Bad usage, or an input that is missing, unreadable, or newer than this stripectl."""

    exit_code = 2


class Missing(StripectlError):
    """The target or a component is not on this machine; the message says what installs it."""

    exit_code = 3
