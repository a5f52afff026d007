"""Every pair of shards of a ring of four, on one device: values and gradients against float64."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.check_gpu.sizes import DTYPE, HEAD_DIM, Sizes, in_batches, kernels_here, takes
from stripectl.core.defaults import usual_tile
from stripectl.core.kernel import kernels
from stripectl.core.layout import layouts
from stripectl.core.plan import Plan, parse_plan
from stripectl.core.sequence_sharding import sequence_sharding
from stripectl.core.workload import Workload
from stripectl.execute.attend import JaxAttend, Saved
from stripectl.execute.reference import reference_attention
from stripectl.execute.verification import tolerance

SHARDS, HEADS, KV_HEADS = 4, 4, 2
WHOLE, UNEVEN = 512, 300  # rows of a shard


class Example(NamedTuple):
    """A ring to compute: its mask, the sizes of a head of keys and values, the rows of a shard, layout and kernel."""

    mask: str
    head_dim: int
    v_head_dim: int
    rows: int
    layout: str
    kernel: str


def examples() -> list[Example]:
    """Every layout with the causal mask; other masks and heads; shards that no tile divides."""
    shapes = [
        *(("causal", HEAD_DIM, HEAD_DIM, WHOLE, layout) for layout in layouts.names()),
        ("full", HEAD_DIM, HEAD_DIM, WHOLE, "contiguous"),
        *(("causal", *size, WHOLE, "zigzag") for size in ((192, 128), (64, 64), (256, 256))),
        *((mask, HEAD_DIM, HEAD_DIM, UNEVEN, "contiguous") for mask in ("causal", "full")),
    ]
    return [Example(*each, kernel) for each in shapes for kernel in kernels_here() if takes(kernel, *each[1:3])]


def found(_: Sizes, __: Path) -> Iterator[dict[str, Any]]:
    """The errors of output and gradients, relative to the largest value."""
    for each, ring in in_batches(examples(), ring_programs):
        (work, arrays, expected), plan = attention_of(*each[:4]), plan_of(each)
        order = sequence_sharding(work, plan).orders()[0]
        values = whole_ring(plan, ring, [array[:, :, order] for array in arrays])
        errors = {
            name: float(np.max(np.abs(np.float64(one) - other[:, :, order])) / np.max(np.abs(other)))
            for name, one, other in zip(("out", "dq", "dk", "dv"), values, expected, strict=True)
        }
        allowed = tolerance(work, plan, "gpu")
        yield each._asdict() | errors | {"tolerance": allowed, "ok": max(errors.values()) <= allowed}


@cache
def attention_of(mask: str, head_dim: int, v_head_dim: int, rows: int) -> tuple[Workload, list[Any], tuple[Any, ...]]:
    """A workload, its random arrays (q, k, v, dout), and its output and gradients in float64."""
    rng, size = np.random.default_rng(0), {"head_dim": head_dim, "v_head_dim": v_head_dim}
    heads = {"heads": HEADS, "kv_heads": KV_HEADS}
    work = Workload.from_json({"seq_len": SHARDS * rows, "dtype": DTYPE, "mask": mask, **heads, **size})
    shapes = (HEADS, head_dim), (KV_HEADS, head_dim), (KV_HEADS, v_head_dim), (HEADS, v_head_dim)
    arrays = [
        np.asarray(jnp.asarray(rng.standard_normal((1, each, work.seq_len, elements)), DTYPE))
        for each, elements in shapes
    ]
    return work, arrays, reference_attention(work, *arrays)


def plan_of(each: Example) -> Plan:
    plan = parse_plan(f"ring/{each.layout}/{each.kernel}@ring={SHARDS}")
    return replace(plan, tile=usual_tile(plan, attention_of(*each[:4])[0], "gpu"))


class RingPrograms(NamedTuple):
    """What a device of a ring computes for one pair of shards, compiled."""

    attend: Any
    forward: Any
    backward: Any


def shards_of(plan: Plan, arrays: list[Any]) -> list[list[Any]]:
    return [[jnp.asarray(part) for part in np.split(array, plan.shards, axis=2)] for array in arrays]


def ring_programs(each: Example) -> RingPrograms:
    """The programs of a ring, for shards of its shapes."""
    (work, arrays, _), plan = attention_of(*each[:4]), plan_of(each)
    module = kernels[plan.kernel].load()
    attend = JaxAttend(module, sequence_sharding(work, plan), plan.tiles, value_dim=each.v_head_dim)
    q, k, v, dout = (parts[0] for parts in shards_of(plan, arrays))
    row, dq = jnp.zeros(q.shape[:3], jnp.float32), jnp.zeros(q.shape, jnp.float32)
    state = jax.eval_shape(attend.empty, q)

    def forward(me: Any, src: Any, q: Any, kv: Any, state: Any) -> Any:
        return attend(q, kv, me, src, into=state)

    def backward(me: Any, src: Any, saved: Any, kv: Any, dq: Any) -> Any:
        return attend.backward(saved, kv, me, src, into=dq)

    return RingPrograms(
        attend,
        jax.jit(forward).lower(0, 0, q, (k, v), state).compile(),
        jax.jit(backward).lower(0, 0, Saved(q, dout, row, row), (k, v), dq).compile(),
    )


def whole_ring(plan: Plan, ring: RingPrograms, arrays: list[Any]) -> tuple[Any, ...]:
    """(out, dq, dk, dv) of a ring whose shards meet one after another on one device, in the layout's order."""
    q, k, v, dout = shards_of(plan, arrays)
    outs, dqs = [], []
    dk, dv = ([jnp.zeros(part.shape, jnp.float32) for part in parts] for parts in (k, v))
    for me in range(plan.shards):
        state = ring.attend.empty(q[me])
        for src in range(plan.shards):
            state = ring.forward(me, src, q[me], (k[src], v[src]), state)
        out, lse = ring.attend.finish(state)
        delta = jnp.sum(out.astype(jnp.float32) * dout[me].astype(jnp.float32), -1)
        saved, dq = Saved(q[me], dout[me], lse, delta), jnp.zeros(q[me].shape, jnp.float32)
        for src in range(plan.shards):
            dq, (one, other) = ring.backward(me, src, saved, (k[src], v[src]), dq)
            dk[src], dv[src] = dk[src] + one, dv[src] + other
        outs.append(out)
        dqs.append(dq)
    return tuple(np.concatenate(parts, axis=2) for parts in (outs, dqs, dk, dv))
