"""Products of matrices by shape and dtype, as a training step has them: the forward product (m tokens), the gradient of
the tokens, and the gradient of the matrix, whose inner dimension is the tokens."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from benchmarks.check_gpu.sizes import DTYPE, Sizes, compiled, in_batches, normal
from stripectl.measure.timing import typical

# Dtypes of the operands and of the result; a loss has logits in float32, and so have its gradients.
DTYPES = ((DTYPE, DTYPE), (DTYPE, "float32"), ("float32", "float32"))
EQUATIONS = {
    "forward": ("mk,kn->mn", "mk", "kn"),
    "tokens": ("mn,kn->mk", "mn", "kn"),
    "matrix": ("mk,mn->kn", "mk", "mn"),
}


class Product(NamedTuple):
    """A product, by the tokens (m), the inputs (k) and the outputs (n) of the matrix."""

    m: int
    k: int
    n: int
    of: str
    operands: str
    result: str


def products(sizes: Sizes) -> list[Product]:
    """Every product in the dtype of a step, and those of the largest number of outputs in all dtypes."""
    widest = max(n for _, n in sizes.shapes)
    return [
        Product(m, k, n, of, *dtypes)
        for m in sizes.matrices
        for k, n in sizes.shapes
        for of in EQUATIONS
        for dtypes in (DTYPES if n == widest else DTYPES[:1])
    ]


def found(sizes: Sizes, _: Path) -> Iterator[dict[str, Any]]:
    """Seconds and FLOP/s of each product."""
    for each, (function, *inputs) in in_batches(products(sizes), compiled_product):
        seconds = typical(function, *inputs)
        yield each._asdict() | {"seconds": seconds, "flops_per_s": 2 * each.m * each.k * each.n / seconds}


def compiled_product(product: Product) -> tuple[Any, ...]:
    """A compiled product and its operands."""
    equation, *letters = EQUATIONS[product.of]
    shapes = (tuple(getattr(product, letter) for letter in each) for each in letters)

    def multiply(a: jax.Array, b: jax.Array) -> jax.Array:
        return jnp.einsum(equation, a, b, preferred_element_type=product.result)

    return compiled(multiply, *normal(*shapes, dtype=product.operands))
