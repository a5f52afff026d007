"""Functions with a backward pass of their own, and what cannot be differentiated: their tangents (forward mode) and
their gradients a second time, which JAX would refuse in words of its own."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from stripectl.errors import BadInput
from stripectl.execute.settings import own_settings


def with_backward(function: Callable, save: Callable, backward: Callable, nondiff_argnums: Sequence[int] = ()) -> Any:
    """The function with a backward pass, as of jax.custom_vjp: `save` returns (result, residuals)."""
    opaque = jax.custom_vjp(function, nondiff_argnums=tuple(nondiff_argnums))
    opaque.defvjp(own_settings(save), own_settings(backward))
    return opaque


def first_order_only(backward: Callable) -> Callable:
    """A backward pass that refuses to be differentiated."""

    def refuse(*_: Any) -> Any:
        raise BadInput(
            "cannot differentiate this attention twice because its backward pass is a program of its own. Try "
            "jax.nn.dot_product_attention where second derivatives are needed, or an optimizer without them."
        )

    opaque = jax.custom_vjp(backward)
    opaque.defvjp(refuse, refuse)
    return opaque


def refuse_tangents(*_: Any, **__: Any) -> Any:
    raise BadInput(
        "cannot differentiate this attention in forward mode (jax.jvp, jax.jacfwd, jax.hessian) because it has a "
        "backward pass of its own. Try jax.vjp, jax.grad or jax.jacrev."
    )


# Two identities. Reverse mode transposes the second, and forward mode computes it or vmaps it. jax.vmap of a gradient
# maps the first, before there are tangents, or the transpose.
identity_p, tangent_p = Primitive("stripectl_identity"), Primitive("stripectl_tangent")
for each in (identity_p, tangent_p):
    each.def_abstract_eval(lambda x: x)
identity_p.def_impl(lambda x: x)
batching.primitive_batchers[identity_p] = lambda given, dims: (identity_p.bind(*given), dims[0])
mlir.register_lowering(identity_p, lambda _, x: [x])
ad.primitive_transposes[tangent_p] = lambda cotangent, _: [cotangent]
tangent_p.def_impl(refuse_tangents)
batching.primitive_batchers[tangent_p] = refuse_tangents
ad.primitive_jvps[tangent_p] = refuse_tangents
mlir.register_lowering(tangent_p, refuse_tangents)


def _with_tangent(primals: tuple, tangents: tuple) -> tuple:
    (x,), (tangent,) = primals, tangents
    return identity_p.bind(x), tangent if isinstance(tangent, ad.Zero) else tangent_p.bind(tangent)


ad.primitive_jvps[identity_p] = _with_tangent


def reverse_mode_only(x: jax.Array) -> jax.Array:
    """x, whose tangents are refused."""
    return identity_p.bind(x)
