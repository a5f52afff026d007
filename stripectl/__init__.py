"""stripectl: which sequence-parallel attention, which tile sizes, which mesh, and why.

A scheme is a short program over `attend` and `comm`. A layout says which positions of the sequence a shard holds. A
kernel computes a tile. Bind them to JAX and the program runs or compiles; bind them to clocks and the same program is
simulated.
"""

__version__ = "0.1.0"


class StripectlError(Exception):
    """Something the user can act on; the command line prints it as one line and exits with `exit_code`."""

    exit_code = 1


class BadInput(StripectlError):
    """Bad usage, or an input that is missing, unreadable, or newer than this stripectl."""

    exit_code = 2


class Missing(StripectlError):
    """The target or a component is not on this machine; the message says what installs it."""

    exit_code = 3
