"""`attend` of a library's kernel where one call can hold all scores (`calls_once`): its result is final unless the
scheme makes another call, so nothing is merged, converted or rounded.

The state of queries is None before the first call, and the library's result after it. A second call, or a call with a
part of the keys, adds to accumulators as every other kernel does.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from stripectl.core import scopes
from stripectl.core.attend import PartialResult
from stripectl.core.layout import WHOLE, Index, Part
from stripectl.execute.attend import JaxAttend, KeysValues, Saved, State
from stripectl.execute.derivatives import first_order_only, with_backward


@dataclass(frozen=True, eq=False)
class OneCallAttend(JaxAttend):
    saves_output = True

    def empty(self, q: jax.Array) -> None:
        return None

    def zeros(self, saved: Saved) -> None:
        return None

    def accumulators(self, state: State) -> State:
        """A state as (out, maximum, sum) in float32. The maximum is a constant: the gradient of the log-sum-exp passes
        through the weight, which is 1."""
        if not isinstance(state, PartialResult):
            return state
        maximum = lax.stop_gradient(state.lse)
        weight = jnp.exp(state.lse - maximum)
        return state.out.astype(jnp.float32) * weight[..., None], maximum, weight

    def __call__(
        self, q: jax.Array, kv: KeysValues, me: Index, src: Index, *, into: State, part: Part = WHOLE
    ) -> State:
        if into is not None or part != WHOLE:
            before = super().empty(q) if into is None else self.accumulators(into)
            return super().__call__(q, kv, me, src, into=before, part=part)
        with jax.named_scope(scopes.ATTEND_FORWARD):
            return attend_once(self, q, kv)

    def backward(
        self,
        saved: Saved,
        kv: KeysValues,
        me: Index,
        src: Index,
        *,
        into: jax.Array | None,
        part: Part = WHOLE,
    ) -> tuple[jax.Array, KeysValues]:
        q, dout, lse, delta, out = saved
        if into is not None or part != WHOLE:
            before = super().zeros(saved) if into is None else into.astype(jnp.float32)
            return super().backward(saved, kv, me, src, into=before, part=part)
        with jax.named_scope(scopes.ATTEND_BACKWARD):
            given = dout, lse, delta, out, self.bands(0, 0), self.tiles["backward"]
            dq, dk, dv = self.kernel.backward_once(q, *kv, *given, **self.of_scores)
        return dq, (dk, dv)

    def merge(self, state: State, partial: PartialResult) -> State:
        return partial if state is None else super().merge(self.accumulators(state), partial)

    def maximum(self, state: State) -> jax.Array:
        return state.lse if isinstance(state, PartialResult) else super().maximum(state)

    def rescale(self, state: State, maximum: jax.Array) -> tuple[jax.Array, jax.Array]:
        return super().rescale(self.accumulators(state), maximum)

    def finish(self, state: State) -> tuple[jax.Array, Any]:
        return state if isinstance(state, PartialResult) else super().finish(state)


def _attend_once(attend: OneCallAttend, q: jax.Array, kv: KeysValues) -> PartialResult:
    given = attend.bands(0, 0), attend.tiles["forward"]
    return PartialResult(*attend.kernel.forward_once(q.astype(kv[0].dtype), *kv, *given, **attend.of_scores))


def _attend_once_forward(attend: OneCallAttend, q: jax.Array, kv: KeysValues) -> tuple[PartialResult, tuple]:
    found: Any = attend_once(attend, q, kv)
    return found, (q, kv, found)


def _attend_once_backward(attend: OneCallAttend, residuals: tuple, cotangents: PartialResult) -> tuple:
    return first_order_only(partial(_once_gradients, attend))(residuals, cotangents)


def _once_gradients(attend: OneCallAttend, residuals: tuple, cotangents: PartialResult) -> tuple:
    """The gradients of a result. The cotangent of its log-sum-exp is a part of delta, which the library cannot know, so
    the pass is one with a given delta."""
    q, kv, (out, lse) = residuals
    dout, dlse = cotangents
    delta = jnp.sum(dout.astype(jnp.float32) * out.astype(jnp.float32), axis=-1) - dlse
    saved = Saved(q.astype(kv[0].dtype), dout.astype(kv[0].dtype), lse, delta)
    dq, dkv = attend.backward(saved, kv, 0, 0, into=jnp.zeros_like(q, jnp.float32))
    return dq.astype(q.dtype), jax.tree.map(lambda gradient, x: gradient.astype(x.dtype), dkv, kv)


attend_once = with_backward(_attend_once, _attend_once_forward, _attend_once_backward, (0,))
