"""`attend` of linear attention, bound to JAX: it also has states, one per key/value head."""

from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from stripectl.core.comm import HEADS
from stripectl.core.linear_attention import FEATURES
from stripectl.execute.attend import JaxAttend, Saved


@dataclass(frozen=True, eq=False)
class JaxLinearAttend(JaxAttend):
    """`decays` are the logarithms for all key/value heads, which are sharded `over` these mesh axes (with sizes);
    `keeps` says whether states are kept for the backward pass."""

    decays: np.ndarray = field(default_factory=lambda: np.zeros(1))
    over: tuple[tuple[str, int], ...] = ()
    features: str = FEATURES[0]
    keeps: bool = True

    def own_rates(self, heads: int):
        """(heads,): the rates of a device with `heads` of the heads, or of their copies."""
        index, devices = 0, 1
        for axis, size in self.over:
            index, devices = index * size + lax.axis_index(axis), devices * size
        every = np.repeat(self.decays, heads * devices // len(self.decays)).astype(np.float32)
        return lax.dynamic_slice(jnp.asarray(every), (index * heads,), (heads,))

    @property
    def sees_future(self) -> bool:
        return self.sharding.window.sees_future

    def rates(self, kv) -> tuple:
        return (self.own_rates(kv[0].shape[HEADS]),)

    def with_features(self, q, kv):
        if self.features == FEATURES[0]:
            return q, kv
        return 1 + jax.nn.elu(q), (1 + jax.nn.elu(kv[0]), kv[1])

    def finish(self, state):
        """(out, the state that `apply` kept): the output is not normalised."""
        return state[0], state[1] if self.keeps else None

    def local_part(self, q, kv, me, part, *, into):
        bands = self.bands(me, me)
        with jax.named_scope("attend_forward"):
            return self.kernel.forward(q, *kv, into, bands, self.tiles["forward"], *self.rates(kv), part)

    def local_part_backward(self, saved: Saved, kv, me, part, *, into):
        given = self.bands(me, me), self.tiles["backward"], *self.rates(kv), part
        with jax.named_scope("attend_backward"):
            return self.kernel.backward_q(*kv, saved.dout_BNTH, into, *given)

    def keys_backward(self, saved: Saved, kv, me):
        given = self.bands(me, me), self.tiles["backward"], *self.rates(kv)
        with jax.named_scope("attend_backward"):
            return self.kernel.backward_kv(saved.q_BNTH, *kv, saved.dout_BNTH, *given)

    def state(self, kv):
        with jax.named_scope("attend_forward"):
            return self.kernel.state(*kv, *self.rates(kv))

    def advance_state(self, state, own):
        rate_K = self.own_rates(own.shape[HEADS])[:, None, None]
        return self.kernel.advance_state(state, own, rate_K, self.sharding.rows)

    def state_before(self, states, me, by: int = 1):
        if self.sees_future:
            return states.sum(0) - lax.dynamic_index_in_dim(states, me, keepdims=False)
        shards = states.shape[0]
        states, place = (states, me) if by == 1 else (states[::-1], shards - 1 - me)

        def onward(before, at):
            return jnp.where(at < place, self.advance_state(before, states[at]), before), None

        return lax.scan(onward, jnp.zeros(states.shape[1:], states.dtype), jnp.arange(shards - 1))[0]

    def apply(self, q, before, *, into):
        out, _, nothing = into
        with jax.named_scope("attend_forward"):
            return out + self.kernel.apply(q, before, self.own_rates(before.shape[HEADS])), before, nothing

    def saved_state(self, saved: Saved):
        return saved.residual

    def dstate(self, saved: Saved, kv):
        with jax.named_scope("attend_backward"):
            return self.kernel.dstate(saved.q_BNTH, saved.dout_BNTH, *self.rates(kv))

    def state_backward(self, saved: Saved, kv, before, behind, *, into):
        dq, (dk, dv) = into
        with jax.named_scope("attend_backward"):
            dq = dq + self.kernel.apply(saved.dout_BNTH, before.swapaxes(2, 3), *self.rates(kv))
            own_dk, own_dv = self.kernel.state_backward(*kv, behind, *self.rates(kv))
        return dq, (dk + own_dk, dv + own_dv)
