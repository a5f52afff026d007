"""Pairs of shards as a ring meets them, by the kernels, beside the library's own full and causal attention."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from benchmarks.check_gpu.sizes import HEAD_DIM, HEADS, Sizes, compiled, in_batches, kernels_here, normal, takes
from stripectl.core.kernel import kernels
from stripectl.core.layout import UNBOUNDED, MaskBlock
from stripectl.measure.timing import typical

LIBRARY = "jax.nn.dot_product_attention"
LAST = {"full": UNBOUNDED, "causal": 0, "later": -1}  # the last diagonal that a band keeps
HEADS_ELSEWHERE = ((192, 128), (64, 64), (256, 256))  # sizes of heads of keys and values


class Pair(NamedTuple):
    """A pair of shards: its queries, its keys, the part of them that a mask keeps, and the sizes of a head."""

    rows: int
    cols: int
    band: str
    head_dim: int = HEAD_DIM
    v_head_dim: int = HEAD_DIM


def found(sizes: Sizes, _: Path) -> Iterator[dict[str, Any]]:
    """Seconds of each pass of each pair, by kernel; pairs that have not run on a GPU first."""
    bands, here = ("full", "causal"), kernels_here()
    heads = [Pair(rows, rows, band, *size) for size in HEADS_ELSEWHERE for rows in sizes.other_heads for band in bands]
    square = [Pair(rows, rows, band) for rows in sizes.blocks for band in bands]
    others = [Pair(rows, sizes.keys, "full") for rows in sizes.queries] + [Pair(sizes.keys, sizes.keys, "later")]
    jobs = [(kernel, pair) for pair in (*heads, *square, *others) for kernel in here if takes(kernel, *pair[3:])]
    jobs += [(LIBRARY, pair) for pair in square if "cudnn" in here]
    for (name, pair), (forward, other) in in_batches(jobs, passes_of):
        forward_s, other_s = typical(*forward), typical(*other)
        backward_s = other_s - forward_s if name == LIBRARY else other_s  # the library's other program is both passes
        yield {"kernel": name, **pair._asdict(), "forward_s": forward_s, "backward_s": backward_s}


def passes_of(job: tuple[str, Pair]) -> tuple[Any, Any]:
    """The programs of a job, and their inputs."""
    name, pair = job
    return library_passes(pair) if name == LIBRARY else kernel_passes(name, pair)


def kernel_passes(kernel: str, pair: Pair) -> tuple[Any, Any]:
    """Both passes of a kernel on a pair of shards, with their inputs."""
    rows, cols, band, head_dim, v_head_dim = pair
    about, module = kernels[kernel], kernels[kernel].load()
    tile = about.largest_tile(about.default_tile("gpu"), min(rows, cols))
    shapes = (
        (1, HEADS, *each) for each in ((rows, head_dim), (cols, head_dim), (cols, v_head_dim), (rows, v_head_dim))
    )
    q, k, v, dout = normal(*shapes)
    out, dq = (jnp.zeros(each.shape, jnp.float32) for each in (dout, q))
    row = jnp.zeros(q.shape[:3], jnp.float32)
    bands = [MaskBlock(0, 0, rows, cols, -UNBOUNDED, LAST[band])]
    lse = row + jnp.log(float(cols))
    return (
        compiled(
            lambda q, k, v, *state: module.forward(q, k, v, state, bands, tile), q, k, v, out, row + module.EMPTY, row
        ),
        compiled(lambda *arrays: module.backward(*arrays, bands, tile), q, k, v, dout, lse, row, dq),
    )


def library_passes(pair: Pair) -> tuple[Any, Any]:
    """JAX's public attention by cuDNN: its forward pass, and both passes."""
    shape, keys = ((1, size, HEADS, pair.head_dim) for size in (pair.rows, pair.cols))
    q, k, v, dout = normal(shape, keys, keys, shape)

    def attention(q: Any, k: Any, v: Any) -> Any:
        return jax.nn.dot_product_attention(q, k, v, is_causal=pair.band == "causal", implementation="cudnn")

    def both(q: Any, k: Any, v: Any, dout: Any) -> Any:
        out, transpose = jax.vjp(attention, q, k, v)
        return out, transpose(dout)

    return compiled(attention, q, k, v), compiled(both, q, k, v, dout)
