"""JAX's settings while a program of this package is traced: 32 bits, and NumPy's promotion of dtypes and ranks. The
arrays have dtypes of their own whatever a caller's settings are, and kernels are written for these."""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import jax

P = ParamSpec("P")
R = TypeVar("R")


def own_settings(function: Callable[P, R]) -> Callable[P, R]:
    """The function under these settings. A rule for derivatives needs them too, since JAX calls it later."""

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        with jax.enable_x64(False), jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            return function(*args, **kwargs)

    return run
