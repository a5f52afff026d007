"""2^x on a CPU: a power of two, rounded to the nearest, times a polynomial of what is left (Cody and Waite 1980).

XLA's exponential is as exact for any x. That of a score less the maximum of its row may lose some of it where it is
small, and fewer operations are enough.
"""

import jax.numpy as jnp
import numpy as np
from jax import lax

DEGREE = 5  # an error of 2e-7; float32 rounds to 1e-7 in any case
NEAREST = np.polynomial.Chebyshev.interpolate(np.exp2, DEGREE, domain=[-0.5, 0.5])
COEFFICIENTS = 1.0, *NEAREST.convert(kind=np.polynomial.Polynomial).coef[1:].tolist()
MIN_EXPONENT = -126.0  # of the exponents of normal numbers in float32
TO_LAST_BITS = 1.5 * 2.0**23  # of such a float32 the last bits are a whole number: cheaper than to convert it


def power_of_two(x):
    """2^x in float32 for x of no more than 127, off by 3e-7 of it at most; 0 for any x below -126.

    It ends in a selection because XLA computes what does so once, and other short loops anew for each reader."""
    whole = jnp.round(x)
    fraction = x - whole
    factor = jnp.full_like(fraction, COEFFICIENTS[-1])
    for coefficient in COEFFICIENTS[-2::-1]:
        factor = factor * fraction + coefficient
    exponent = lax.bitcast_convert_type(whole + TO_LAST_BITS, jnp.int32) << 23
    power = lax.bitcast_convert_type(lax.bitcast_convert_type(factor, jnp.int32) + exponent, jnp.float32)
    return jnp.where(x < MIN_EXPONENT, 0, power)
