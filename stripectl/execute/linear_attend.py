"""`attend` for linear attention with JAX: with a constant gate, or with gates and rules that depend on the input."""

from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from stripectl.core import scopes
from stripectl.core.comm import HEADS
from stripectl.core.layout import Index
from stripectl.core.linear_attention import FEATURES
from stripectl.core.recurrence import Recurrence
from stripectl.execute.attend import JaxAttend, KeysValues, Saved, State


@dataclass(frozen=True, eq=False)
class JaxLinearAttend(JaxAttend):
    """Linear attention with a constant gate: the map of a shard is its state. `decays` holds the logarithm of the decay
    of all key/value heads, `over` the mesh axes that distribute them and their sizes; `keeps` says whether states are
    kept for the backward pass."""

    decays: np.ndarray = field(default_factory=lambda: np.zeros(1))
    over: tuple[tuple[str, int], ...] = ()
    features: str = FEATURES[0]
    keeps: bool = True

    def own_rates(self, heads: int) -> jax.Array:
        """(heads,): the rates of the `heads` heads, or copies of heads, on this device."""
        index, devices = 0, 1
        for axis, size in self.over:
            index, devices = index * size + lax.axis_index(axis), devices * size
        every = np.repeat(self.decays, heads * devices // len(self.decays)).astype(np.float32)
        return lax.dynamic_slice(jnp.asarray(every), (index * heads,), (heads,))

    @property
    def sees_future(self) -> bool:
        return self.sharding.window.sees_future

    def rates(self, kv: KeysValues) -> tuple:
        return (self.own_rates(kv[0].shape[HEADS]),)

    def with_features(self, q: jax.Array, kv: KeysValues) -> tuple[jax.Array, KeysValues]:
        if self.features == FEATURES[0]:
            return q, kv
        return 1 + jax.nn.elu(q), (1 + jax.nn.elu(kv[0]), kv[1])

    def finish(self, state: State) -> tuple[jax.Array, Any]:
        """(out, the state that `apply` kept). The output is not normalised."""
        return state[0], state[1] if self.keeps else None

    def local_part(self, q: jax.Array, kv: KeysValues, me: Index, part: tuple[Index, int], *, into: State) -> State:
        bands = self.bands(me, me)
        with jax.named_scope(scopes.ATTEND_FORWARD):
            return self.kernel.forward(q, *kv, into, bands, self.tiles["forward"], *self.rates(kv), part)

    def local_part_backward(
        self, saved: Saved, kv: KeysValues, me: Index, part: tuple[Index, int], *, into: jax.Array
    ) -> jax.Array:
        given = self.bands(me, me), self.tiles["backward"], *self.rates(kv), part
        with jax.named_scope(scopes.ATTEND_BACKWARD):
            return self.kernel.backward_q(*kv, saved.dout_BNTH, into, *given)

    def keys_backward(self, saved: Saved, kv: KeysValues, me: Index) -> KeysValues:
        given = self.bands(me, me), self.tiles["backward"], *self.rates(kv)
        with jax.named_scope(scopes.ATTEND_BACKWARD):
            return self.kernel.backward_kv(saved.q_BNTH, *kv, saved.dout_BNTH, *given)

    def map_of(self, kv: KeysValues) -> jax.Array:
        with jax.named_scope(scopes.ATTEND_FORWARD):
            return self.kernel.state(*kv, *self.rates(kv))

    def state_of(self, own: jax.Array) -> jax.Array:
        return own

    def advance_state(self, state: jax.Array, own: jax.Array, shards: int = 1) -> jax.Array:
        rate_K = self.own_rates(own.shape[HEADS])[:, None, None]
        return self.kernel.advance_state(state, own, rate_K, shards * self.sharding.rows)

    def compose(self, later: jax.Array, earlier: jax.Array, shards: int = 1) -> jax.Array:
        return self.advance_state(earlier, later, shards)

    def state_before(self, maps: jax.Array, me: Index, by: int = 1) -> jax.Array:
        if self.sees_future:
            return maps.sum(0) - lax.dynamic_index_in_dim(maps, me, keepdims=False)
        return state_after_maps(self, maps, me, by)

    def apply(self, q: jax.Array, kv: KeysValues, before: jax.Array, *, into: State) -> State:
        out, _, nothing = into
        with jax.named_scope(scopes.ATTEND_FORWARD):
            return out + self.kernel.apply(q, before, self.own_rates(before.shape[HEADS])), before, nothing

    def saved_state(self, saved: Saved) -> jax.Array | None:
        return saved.residual

    def transposed_map_of(self, saved: Saved, kv: KeysValues) -> jax.Array:
        with jax.named_scope(scopes.ATTEND_BACKWARD):
            return self.kernel.dstate(saved.q_BNTH, saved.dout_BNTH, *self.rates(kv))

    def state_backward(
        self, saved: Saved, kv: KeysValues, before: jax.Array, behind: jax.Array, *, into: tuple[jax.Array, KeysValues]
    ) -> tuple[jax.Array, KeysValues]:
        dq, (dk, dv) = into
        with jax.named_scope(scopes.ATTEND_BACKWARD):
            dq = dq + self.kernel.apply(saved.dout_BNTH, before.swapaxes(2, 3), *self.rates(kv))
            own_dk, own_dv = self.kernel.state_backward(*kv, behind, *self.rates(kv))
        return dq, (dk + own_dk, dv + own_dv)


def state_after_maps(attend: "JaxLinearAttend | JaxGatedAttend", maps: jax.Array, me: Index, by: int) -> jax.Array:
    """Apply the stacked maps of all shards before `me`, or after it with by=-1, to a state of zeros."""
    shards = maps.shape[0]
    maps, place = (maps, me) if by == 1 else (maps[::-1], shards - 1 - me)

    def onward(before: jax.Array, at: Index) -> tuple[jax.Array, None]:
        return jnp.where(at < place, attend.advance_state(before, maps[at]), before), None

    return lax.scan(onward, jnp.zeros_like(attend.state_of(maps[0])), jnp.arange(shards - 1))[0]


@dataclass(frozen=True, eq=False)
class JaxGatedAttend(JaxAttend):
    """A recurrence whose gates or rule depend on the input; kv is (keys, values, gates...). An output needs the state
    before its shard, so `apply` computes the whole output, and the state of queries is (out, before).

    The two halves of a zigzag shard are separate runs of tokens: they are computed like two sequences of a batch, whose
    maps are ordered by their positions."""

    recurrence: Recurrence | None = None
    keeps: bool = True
    key_dim: int = 0

    sees_future = False

    @property
    def gates(self) -> int:
        """The number of gate arrays, which follow keys and values."""
        assert self.recurrence
        return len(self.recurrence.gate_shapes(1))

    def in_runs(self, q: jax.Array, kv: KeysValues) -> tuple[jax.Array, KeysValues]:
        runs = self.sharding.runs

        def cut(x: jax.Array) -> jax.Array:
            batch, heads, rows, *rest = x.shape
            parts = jnp.moveaxis(x.reshape(batch, heads, runs, rows // runs, *rest), 2, 0)
            return parts.reshape(runs * batch, heads, rows // runs, *rest)

        return (q, kv) if runs == 1 else jax.tree.map(cut, (q, kv))

    def from_runs(self, out: jax.Array) -> jax.Array:
        runs = self.sharding.runs
        return out if runs == 1 else jnp.concatenate(jnp.split(out, runs), 2)

    def empty(self, q: jax.Array) -> None:
        return None

    def zeros(self, saved: Saved) -> None:
        return None

    def finish(self, state: State) -> tuple[jax.Array, Any]:
        """(out, the state before the shard). The output is not normalised."""
        out, before = state
        return out, before if self.keeps else None

    def no_state(self, kv: KeysValues) -> jax.Array:
        k, v, *_ = kv
        return jnp.zeros_like(v, jnp.float32, (*v.shape[:2], k.shape[3], v.shape[3]))

    def __call__(self, q: jax.Array, kv: KeysValues, me: Index, src: Index, *, into: State, part: Any = None) -> State:
        return self.apply(q, kv, self.no_state(kv), into=into)

    def backward(
        self, saved: Saved, kv: KeysValues, me: Index, src: Index, *, into: Any, part: Any = None
    ) -> tuple[jax.Array, KeysValues]:
        return self.state_backward(saved, kv, self.no_state(kv), self.no_state(kv), into=into)

    def local_part(self, q: jax.Array, kv: KeysValues, me: Index, part: tuple[Index, int], *, into: State) -> State:
        return into

    def local_part_backward(
        self, saved: Saved, kv: KeysValues, me: Index, part: tuple[Index, int], *, into: Any
    ) -> Any:
        return into

    def keys_backward(self, saved: Saved, kv: KeysValues, me: Index) -> None:
        return None

    def chunk(self, passes: str) -> int:
        return self.tiles[passes].block_kv

    def map_of(self, kv: KeysValues) -> jax.Array:
        k, v, *gates = kv
        with jax.named_scope(scopes.ATTEND_FORWARD):
            return self.kernel.map_of(self.recurrence, k, v, gates, self.chunk("forward"))

    def state_of(self, own: jax.Array) -> jax.Array:
        return self.kernel.split_map(self.recurrence, own, self.key_dim)[1]

    def advance_state(self, state: jax.Array, own: jax.Array, shards: int = 1) -> jax.Array:
        return self.kernel.apply_map(self.recurrence, own, state)

    def compose(self, later: jax.Array, earlier: jax.Array, shards: int = 1) -> jax.Array:
        return self.kernel.compose_maps(self.recurrence, later, earlier, self.key_dim)

    def state_before(self, maps: jax.Array, me: Index, by: int = 1) -> jax.Array:
        layout, shards, runs = self.sharding.layout, self.sharding.shards, self.sharding.runs
        if runs == 1:
            return state_after_maps(self, maps, me, by)
        order = np.argsort([place for shard in range(shards) for place in layout.run_places(shard, shards)])
        ordered = maps.reshape(shards * runs, -1, *maps.shape[2:])[order]
        return jnp.concatenate([state_after_maps(self, ordered, at, by) for at in layout.run_places(me, shards)])

    def apply(self, q: jax.Array, kv: KeysValues, before: jax.Array, *, into: State) -> State:
        k, v, *gates = kv
        with jax.named_scope(scopes.ATTEND_FORWARD):
            return self.kernel.outputs(self.recurrence, q, k, v, gates, before, self.chunk("forward")), before

    def saved_state(self, saved: Saved) -> jax.Array | None:
        return saved.residual

    def transposed_map_of(self, saved: Saved, kv: KeysValues) -> jax.Array:
        k, _, *gates = kv
        given = saved.q_BNTH, k, saved.dout_BNTH, gates, self.chunk("backward")
        with jax.named_scope(scopes.ATTEND_BACKWARD):
            return self.kernel.transposed_map_of(self.recurrence, *given)

    def state_backward(
        self, saved: Saved, kv: KeysValues, before: jax.Array, behind: jax.Array, *, into: Any
    ) -> tuple[jax.Array, KeysValues]:
        k, v, *gates = kv
        given = saved.q_BNTH, k, v, gates, saved.dout_BNTH, before, behind, self.chunk("backward")
        with jax.named_scope(scopes.ATTEND_BACKWARD):
            dq, *dkv = self.kernel.gradients(self.recurrence, *given)
        return dq, tuple(dkv)
