"""stripectl: which sequence-parallel attention, which tile sizes, which mesh, and why.

A scheme is a short program over `attend` and `comm`. A layout says which positions of the sequence a shard holds. A
kernel computes a tile. Bind them to JAX and the program runs or compiles; bind them to clocks and the same program is
simulated.
"""

import importlib
from importlib import metadata
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stripectl.errors import BadInput, Missing, StripectlError
    from stripectl.training.attention import positions, sequence_parallel_attention

    __version__: str

FACE = {
    "BadInput": "errors",
    "Missing": "errors",
    "StripectlError": "errors",
    "positions": "training.attention",
    "sequence_parallel_attention": "training.attention",
}
__all__ = ["BadInput", "Missing", "StripectlError", "__version__", "positions", "sequence_parallel_attention"]


def __getattr__(name: str) -> Any:
    """Everything here is imported when it is asked for, so that the command line starts without JAX."""
    if name == "__version__":
        return metadata.version("stripectl")
    if name not in FACE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"stripectl.{FACE[name]}"), name)
