"""Every pair of shards of a ring of four, on one device: values and gradients against float64."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.check_gpu.sizes import DTYPE, HEAD_DIM, THREADS, Sizes, kernels_here
from stripectl.core.defaults import usual_tile
from stripectl.core.kernel import kernels
from stripectl.core.layout import layouts
from stripectl.core.plan import parse_plan
from stripectl.core.sequence_sharding import sequence_sharding
from stripectl.core.workload import Workload
from stripectl.execute.attend import JaxAttend, Saved
from stripectl.execute.reference import reference_attention
from stripectl.execute.verification import tolerance


def found(_: Sizes, __: Path) -> Iterator[dict[str, Any]]:
    """The errors of output and gradients, relative to the largest value, by layout, mask, head and kernel."""
    rng, shards = np.random.default_rng(0), 4
    causal = [("causal", layout, HEAD_DIM, 512) for layout in layouts.names()]
    others = [("full", "contiguous", HEAD_DIM, 512), ("causal", "zigzag", 64, 512), ("causal", "zigzag", 256, 512)]
    uneven = [("causal", "contiguous", HEAD_DIM, 300), ("full", "contiguous", HEAD_DIM, 300)]

    jobs = list[tuple[Any, Any, list[Any], tuple[Any, ...]]]()
    for mask, layout, size, rows in (*causal, *others, *uneven):
        work = Workload(seq_len=shards * rows, heads=4, kv_heads=2, head_dim=size, dtype=DTYPE, mask=mask)
        shapes = [(1, n, work.seq_len, size) for n in (4, 2, 2, 4)]
        arrays = [np.asarray(jnp.asarray(rng.standard_normal(shape), DTYPE)) for shape in shapes]
        expected = reference_attention(work, *arrays)
        for kernel in kernels_here():
            plan = parse_plan(f"ring/{layout}/{kernel}@ring={shards}")
            plan = replace(plan, tile=usual_tile(plan, work, "gpu"))
            jobs.append((work, plan, arrays, expected))
    with ThreadPoolExecutor(THREADS) as threads:
        programs = list(threads.map(lambda job: ring_programs(*job[:3]), jobs))
    for (work, plan, arrays, expected), ring in zip(jobs, programs, strict=True):
        order = sequence_sharding(work, plan).orders()[0]
        values = whole_ring(plan, ring, [array[:, :, order] for array in arrays])
        errors = {
            name: float(np.max(np.abs(np.float64(one) - other[:, :, order])) / np.max(np.abs(other)))
            for name, one, other in zip(("out", "dq", "dk", "dv"), values, expected, strict=True)
        }
        allowed, shape = tolerance(work, plan, "gpu"), {"head_dim": work.head_dim, "rows": work.seq_len // shards}
        named = {"kernel": plan.kernel, "layout": plan.layout, "mask": work.mask, **shape, **errors}
        yield named | {"tolerance": allowed, "ok": max(errors.values()) <= allowed}


class RingPrograms(NamedTuple):
    """What a device of a ring computes for one pair of shards, compiled."""

    attend: Any
    forward: Any
    backward: Any


def shards_of(plan: Any, arrays: list[Any]) -> list[list[Any]]:
    return [[jnp.asarray(part) for part in np.split(array, plan.shards, axis=2)] for array in arrays]


def ring_programs(work: Any, plan: Any, arrays: list[Any]) -> RingPrograms:
    attend = JaxAttend(kernels[plan.kernel].load(), sequence_sharding(work, plan), plan.tiles)
    q, k, v, dout = (parts[0] for parts in shards_of(plan, arrays))
    row, dq = jnp.zeros(q.shape[:3], jnp.float32), jnp.zeros(q.shape, jnp.float32)

    def forward(me: Any, src: Any, q: Any, kv: Any, state: Any) -> Any:
        return attend(q, kv, me, src, into=state)

    def backward(me: Any, src: Any, saved: Any, kv: Any, dq: Any) -> Any:
        return attend.backward(saved, kv, me, src, into=dq)

    return RingPrograms(
        attend,
        jax.jit(forward).lower(0, 0, q, (k, v), attend.empty(q)).compile(),
        jax.jit(backward).lower(0, 0, Saved(q, dout, row, row), (k, v), dq).compile(),
    )


def whole_ring(plan: Any, ring: RingPrograms, arrays: list[Any]) -> tuple[Any, ...]:
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
