"""The xla kernel on CPU devices beside `ringattention` 0.1.2 and a large matmul, all in one run.

    pip install --no-deps ringattention==0.1.2 einops==0.8.2
    python benchmarks/peer_ringattention.py [dtype]      # float32; takes about 13 minutes

A causal ring of 8 virtual devices over 16k tokens, 4 heads of 64; XLA has the flags that stripectl gives its CPU
workers, and our ring has its loop unrolled by two. The best tile of each is found first; then these run in turns, and
ratios are those of one turn: the median and the middle half of them. FLOP/s count the scores that the mask keeps, two
matmuls forward and five more backward.
"""

import os
import sys
import time

from stripectl.workers.process import ONE_THREAD, VIRTUAL_DEVICES, WIDE_VECTORS

os.environ["JAX_PLATFORMS"] = "cpu"  # before JAX is imported, which reads both
os.environ["XLA_FLAGS"] = f"{VIRTUAL_DEVICES}=8 {WIDE_VECTORS} {ONE_THREAD}"

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from stripectl.core.plan import parse_plan
from stripectl.core.workload import Workload
from stripectl.execute.program import PlanProgram

DEVICES = jax.device_count()
TOKENS, HEADS, HEAD_DIM = 2**14, 4, 64
TRIES, ROUNDS = 3, 15
OURS = ("256x256", "256x512", "512x256")
LAYOUTS = ("contiguous", "zigzag")
THEIRS = ((128, 128), (256, 256), (256, 512))
MATMUL = 2048


def theirs(dtype, chunks, backward, mesh):
    """The package's ring inside shard_map, as its README calls it."""
    if not hasattr(jax.lib, "xla_bridge"):  # which the package asks for its platform when it is imported
        setattr(jax.lib, "xla_bridge", jax.extend.backend)  # noqa: B010
    from ringattention import ringattention_jax  # pyright: ignore[reportMissingImports]

    spec = PartitionSpec(None, "ring")
    options = {
        "causal_block_size": 1,
        "deterministic": True,
        "dropout_rng": None,
        "attn_pdrop": 0.0,
        "query_chunk_size": chunks[0],
        "key_chunk_size": chunks[1],
        "dtype": dtype,
        "policy": jax.checkpoint_policies.nothing_saveable,
        "precision": None,
        "prevent_cse": True,
    }

    def attend(q, k, v):
        return ringattention_jax(q, k, v, None, None, None, "ring", False, options)

    def body(q, k, v, dout):
        if not backward:
            return attend(q, k, v)
        out, gradients = jax.vjp(attend, q, k, v)
        return out, *gradients(dout)

    outs = (spec,) * 4 if backward else spec
    mapped = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=(spec,) * 4, out_specs=outs, check_vma=False))
    keys = jax.random.split(jax.random.key(0), 4)
    shape = 1, TOKENS, HEADS, HEAD_DIM
    return mapped, [jax.device_put(jax.random.normal(key, shape, dtype), NamedSharding(mesh, spec)) for key in keys]


def ours(dtype, layout, tile, backward):
    passes = "forward-backward" if backward else "forward"
    work = Workload(seq_len=TOKENS, heads=HEADS, kv_heads=HEADS, head_dim=HEAD_DIM, dtype=dtype, passes=passes)
    program = PlanProgram(work, parse_plan(f"ring/{layout}/xla@ring={DEVICES},tile={tile},unroll=2"), jax.devices())
    return program.compile({}), program.random_inputs()


def matmul(dtype, mesh):
    """A matmul of 2048 x 2048 on every device."""
    spec = PartitionSpec("ring")
    mapped = jax.shard_map(lambda a, b: jnp.matmul(a[0], b[0])[None], mesh=mesh, in_specs=(spec, spec), out_specs=spec)
    ones = jax.device_put(jnp.ones((DEVICES, MATMUL, MATMUL), dtype), NamedSharding(mesh, spec))
    return jax.jit(mapped), [ones, ones]


def seconds(program):
    function, inputs = program
    start = time.perf_counter()
    jax.block_until_ready(function(*inputs))
    return time.perf_counter() - start


def rounds(programs, count):
    """Seconds of each program, which run in turns."""
    times = {name: [] for name in programs}
    for _ in range(count):
        for name, program in programs.items():
            times[name].append(seconds(program))
    return {name: np.array(each) for name, each in times.items()}


def compare(dtype, backward, mesh, large) -> None:
    name, matmuls = ("forward-backward", 7) if backward else ("forward", 2)
    programs = {(layout, tile): ours(dtype, layout, tile, backward) for layout in LAYOUTS for tile in OURS}
    programs |= {("ringattention", f"{q}x{k}"): theirs(dtype, (q, k), backward, mesh) for q, k in THEIRS}
    rounds(programs, 1)  # compiles
    tried = {each: float(np.median(took)) for each, took in rounds(programs, TRIES).items()}
    best = {who: min((each for each in tried if each[0] == who), key=tried.__getitem__) for who, _ in tried}
    times = rounds({"matmul": large} | {each: programs[each] for each in best.values()}, ROUNDS)
    matmul = 2 * MATMUL**3 * DEVICES / times["matmul"]
    peer = times[best["ringattention"]]
    for each in best.values():
        rate = matmuls * TOKENS**2 * HEAD_DIM * HEADS / times[each]
        faster, share = (np.quantile(x, (0.5, 0.25, 0.75)) for x in (peer / times[each], rate / matmul))
        print(
            f"{name:17}{each[0]:14}{each[1]:>10}{np.median(times[each]):7.3f} s{np.median(rate) / 1e9:5.0f} GFLOP/s  "
            f"{faster[0]:.2f} x ({faster[1]:.2f} to {faster[2]:.2f})  "
            f"{share[0]:.0%} of the matmul ({share[1]:.0%} to {share[2]:.0%})",
            flush=True,
        )


def main(dtype: str = "float32") -> None:
    mesh = jax.make_mesh((DEVICES,), ("ring",), axis_types=(AxisType.Auto,))
    large = matmul(dtype, mesh)
    took = np.median(rounds({"matmul": large}, TRIES + 1)["matmul"])
    print(f"{dtype}, jax {jax.__version__}: matmuls of {MATMUL} at {2 * MATMUL**3 * DEVICES / took / 1e9:.0f} GFLOP/s")
    for backward in (False, True):
        compare(dtype, backward, mesh, large)


main(*sys.argv[1:])
