"""Arithmetic on tiles for ints, NumPy arrays and tracers."""

import jax
import jax.numpy as jnp
import numpy as np

from stripectl.core.layout import UNBOUNDED
from stripectl.core.mask_tiles import quotient

VALUES = [-UNBOUNDED, -300, -128, -1, 0, 1, 127, 128, 129, UNBOUNDED, UNBOUNDED + 2**20]


def test_a_quotient_of_ints_arrays_and_tracers_is_one_and_never_negative() -> None:
    traced = jax.jit(lambda x: quotient(x, 128))
    expected = [max(0, value // 128) for value in VALUES]
    assert [quotient(value, 128) for value in VALUES] == expected
    assert quotient(np.array(VALUES), 128).tolist() == expected
    assert traced(jnp.array(VALUES, jnp.int32)).tolist() == expected


def test_a_traced_quotient_is_one_division_without_corrections() -> None:
    text = jax.jit(lambda x: quotient(x, 128)).lower(jnp.int32(0)).as_text()
    assert text.count("stablehlo.divide") == 1
    assert not any(f"stablehlo.{correction}" in text for correction in ("remainder", "sign", "select"))
