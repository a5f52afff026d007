"""stripectl: which sequence-parallel attention, which tile sizes, which mesh, and why.

A scheme is a short program over `attend` and `comm`. A layout says which positions of the sequence a shard holds. A
kernel computes a tile. Bound to JAX the program runs or compiles; bound to simulated clocks the same program is
simulated.
"""

import importlib
from importlib import metadata
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stripectl.api import accuracy, bench, compare, report, trace, tune_tiles
    from stripectl.core.packing import Packing
    from stripectl.errors import BadInput, Missing, StripectlError
    from stripectl.results.run import Run
    from stripectl.training.attention import sequence_parallel_attention
    from stripectl.training.order import padded_length, positions
    from stripectl.training.rotary import rotary

    __version__: str

FACE = {
    **dict.fromkeys(("accuracy", "bench", "compare", "report", "trace", "tune_tiles"), "api"),
    **dict.fromkeys(("BadInput", "Missing", "StripectlError"), "errors"),
    "Packing": "core.packing",
    "Run": "results.run",
    **dict.fromkeys(("padded_length", "positions"), "training.order"),
    "rotary": "training.rotary",
    "sequence_parallel_attention": "training.attention",
}
__all__ = [
    "BadInput",
    "Missing",
    "Packing",
    "Run",
    "StripectlError",
    "__version__",
    "accuracy",
    "bench",
    "compare",
    "padded_length",
    "positions",
    "report",
    "rotary",
    "sequence_parallel_attention",
    "trace",
    "tune_tiles",
]


def __getattr__(name: str) -> Any:
    """Import a name when it is first used, so that the command line starts without JAX."""
    if name == "__version__":
        return metadata.version("stripectl")
    if name not in FACE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"stripectl.{FACE[name]}"), name)
