"""What one NVIDIA GPU says of stripectl in eight minutes, as one JSON file: run it with `make check-gpu`.

    python benchmarks/check_gpu.py [--output FILE] [--wheels FOLDER] [--small]

It uses the Python and JAX that run it, and no network. Packages that they lack can be carried as wheels: `pip download`
on another machine, then --wheels with the folder. Each part runs in a process of its own with a limit of time; a part
that fails or cannot run leaves its reason, and the others go on. `--small` runs small sizes on whatever device JAX
finds, to try the script itself. Exit code: 0 every part ran, 1 a part failed, 3 there is no GPU or no JAX.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
LIMIT_S = 480.0  # of all parts
HEADS, HEAD_DIM, DTYPE = 8, 128, "bfloat16"


class Sizes(NamedTuple):
    """Rows of what is timed: square block pairs, few queries beside many keys, sides of tiles, and a whole sequence."""

    blocks: tuple[int, ...]
    queries: tuple[int, ...]
    keys: int
    tiles: tuple[int, ...]
    sequence: int
    ring: int  # of the simulated ring of 8
    step: int


FULL = Sizes((2**11, 2**12, 2**13, 2**14, 2**15), (256, 512, 1024, 2048), 2**14, (512, 1024, 2048), 2**15, 2**17, 2**12)
SMALL = Sizes((256,), (64,), 256, (128,), 512, 2**11, 256)


def seconds(function: Callable[..., Any], *inputs: Any) -> float:
    """The median of several runs after the first."""
    from stripectl.measure.session import typical

    return typical(function, *inputs)


def normal(*shapes: tuple[int, ...], dtype: str = DTYPE) -> list[Any]:
    import jax

    keys = jax.random.split(jax.random.key(0), len(shapes))
    return [jax.random.normal(key, shape, dtype) for key, shape in zip(keys, shapes, strict=True)]


def kernels_here() -> list[str]:
    """The kernels that run on this platform, of those that are checked."""
    import jax

    return ["xla", "cudnn"] if jax.default_backend() == "gpu" else ["xla"]


def exactness(sizes: Sizes) -> Iterator[dict[str, Any]]:
    """Every pair of shards of a ring of four, on one device: values and gradients against float64."""
    import jax.numpy as jnp
    import numpy as np

    from stripectl.core.defaults import with_tile
    from stripectl.core.layout import layouts
    from stripectl.core.plan import parse_plan
    from stripectl.core.sequence_sharding import sequence_sharding
    from stripectl.core.workload import Workload
    from stripectl.execute.reference import reference_attention
    from stripectl.execute.verification import tolerance

    rng, shards, rows = np.random.default_rng(0), 4, 512
    for mask in ("causal", "full"):
        work = Workload(seq_len=shards * rows, heads=4, kv_heads=2, head_dim=HEAD_DIM, dtype=DTYPE, mask=mask)
        shapes = [(1, n, work.seq_len, HEAD_DIM) for n in (4, 2, 2, 4)]
        arrays = [np.asarray(jnp.asarray(rng.standard_normal(shape), DTYPE)) for shape in shapes]
        expected = reference_attention(work, *arrays)
        for kernel in kernels_here():
            for layout in layouts.names():
                plan = with_tile(parse_plan(f"ring/{layout}/{kernel}@ring={shards}"), work, "gpu")
                order = sequence_sharding(work, plan).orders()[0]
                found = whole_ring(work, plan, [array[:, :, order] for array in arrays])
                errors = {
                    name: float(np.max(np.abs(np.float64(one) - other[:, :, order])) / np.max(np.abs(other)))
                    for name, one, other in zip(("out", "dq", "dk", "dv"), found, expected, strict=True)
                }
                allowed = tolerance(DTYPE, "gpu")
                row = {"kernel": kernel, "layout": layout, "mask": mask, **errors, "tolerance": allowed}
                yield row | {"ok": max(errors.values()) <= allowed}


def whole_ring(work: Any, plan: Any, arrays: list[Any]) -> tuple[Any, ...]:
    """(out, dq, dk, dv) of a ring whose shards meet one after another on one device, in the layout's order."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from stripectl.core.kernel import kernels
    from stripectl.core.sequence_sharding import sequence_sharding
    from stripectl.execute.attend import JaxAttend, Saved

    attend = JaxAttend(kernels[plan.kernel].load(), sequence_sharding(work, plan), plan.tiles)
    q, k, v, dout = ([jnp.asarray(part) for part in np.split(array, plan.shards, axis=2)] for array in arrays)
    forward = jax.jit(lambda me, src, q, kv, state: attend(q, kv, me, src, into=state))
    backward = jax.jit(lambda me, src, saved, kv, dq: attend.backward(saved, kv, me, src, into=dq))
    outs, dqs = [], []
    dk, dv = ([jnp.zeros(part.shape, jnp.float32) for part in parts] for parts in (k, v))
    for me in range(plan.shards):
        state = attend.empty(q[me])
        for src in range(plan.shards):
            state = forward(me, src, q[me], (k[src], v[src]), state)
        out, lse = attend.finish(state)
        delta = jnp.sum(out.astype(jnp.float32) * dout[me].astype(jnp.float32), -1)
        saved, dq = Saved(q[me], dout[me], lse, delta), jnp.zeros(q[me].shape, jnp.float32)
        for src in range(plan.shards):
            dq, (one, other) = backward(me, src, saved, (k[src], v[src]), dq)
            dk[src], dv[src] = dk[src] + one, dv[src] + other
        outs.append(out)
        dqs.append(dq)
    return tuple(np.concatenate(parts, axis=2) for parts in (outs, dqs, dk, dv))


def block_pairs(sizes: Sizes) -> Iterator[dict[str, Any]]:
    """Pairs of shards as a ring meets them, by the kernels, beside the library's own full and causal attention."""
    from stripectl.core.layout import UNBOUNDED

    bands = {"full": UNBOUNDED, "causal": 0}
    pairs = [(rows, rows, band) for rows in sizes.blocks for band in bands]
    pairs += [(rows, sizes.keys, "full") for rows in sizes.queries]
    pairs += [(sizes.keys, sizes.keys, "later")]
    for rows, cols, band in pairs:
        work = {"rows": rows, "cols": cols, "band": band}
        for kernel in kernels_here():
            timed = kernel_seconds(kernel, rows, cols, bands.get(band, -1))
            yield {"kernel": kernel, **work, **timed}
        if "cudnn" in kernels_here() and band in bands:
            yield {"kernel": "jax.nn.dot_product_attention", **work, **library_seconds(rows, cols, band == "causal")}


def kernel_seconds(kernel: str, rows: int, cols: int, high: int) -> dict[str, float]:
    """Both passes of a kernel on a pair of shards whose keys are kept up to a diagonal."""
    import jax
    import jax.numpy as jnp

    from stripectl.core.kernel import kernels
    from stripectl.core.layout import UNBOUNDED, MaskBlock

    about, module = kernels[kernel], kernels[kernel].load()
    tile, shape = about.largest_tile(about.default_tile("gpu"), min(rows, cols)), (1, HEADS, rows, HEAD_DIM)
    q, k, v, dout = normal(shape, (1, HEADS, cols, HEAD_DIM), (1, HEADS, cols, HEAD_DIM), shape)
    zeros, row = jnp.zeros(shape, jnp.float32), jnp.zeros(shape[:3], jnp.float32)
    bands = [MaskBlock(0, 0, rows, cols, -UNBOUNDED, high)]
    forward = jax.jit(lambda q, k, v, *state: module.forward(q, k, v, state, bands, tile))
    backward = jax.jit(lambda *arrays: module.backward(*arrays, bands, tile))
    lse = row + jnp.log(float(cols))
    return {
        "forward_s": seconds(forward, q, k, v, zeros, row + module.EMPTY, row),
        "backward_s": seconds(backward, q, k, v, dout, lse, row, zeros),
    }


def library_seconds(rows: int, cols: int, causal: bool) -> dict[str, float]:
    """JAX's public attention by cuDNN; its backward pass is what both passes take more than the forward pass."""
    import jax

    shape, keys = (1, rows, HEADS, HEAD_DIM), (1, cols, HEADS, HEAD_DIM)
    q, k, v, dout = normal(shape, keys, keys, shape)

    def attention(q: Any, k: Any, v: Any) -> Any:
        return jax.nn.dot_product_attention(q, k, v, is_causal=causal, implementation="cudnn")

    def both(q: Any, k: Any, v: Any, dout: Any) -> Any:
        out, transpose = jax.vjp(attention, q, k, v)
        return out, transpose(dout)

    forward_s, both_s = seconds(jax.jit(attention), q, k, v), seconds(jax.jit(both), q, k, v, dout)
    return {"forward_s": forward_s, "backward_s": both_s - forward_s}


def tile_costs(sizes: Sizes) -> Iterator[dict[str, Any]]:
    """Blocks of the xla kernel by tile, as a bench times them to simulate from."""
    from stripectl.measure.session import Session
    from stripectl.simulate.calibration import BANDS

    session = Session()
    for side in sizes.tiles:
        for band in BANDS:
            shape = {"group": HEADS, "head_dim": HEAD_DIM, "v_head_dim": HEAD_DIM, "dtype": DTYPE}
            given = {"rows": 4 * side, "band": band, "shape": shape}
            found = session.time_block("xla", f"{side}x{side}", **given)
            yield {"tile": f"{side}x{side}", "rows": 4 * side, "band": band, **found}
    yield {"matmul_flops_per_s": session.time_matmul(DTYPE)}


def memory(sizes: Sizes) -> Iterator[dict[str, Any]]:
    """What the compiler says that a plan holds, beside the most that the device held while it ran."""
    import jax

    from stripectl.core.defaults import with_tile
    from stripectl.core.plan import parse_plan
    from stripectl.core.workload import Workload
    from stripectl.execute.program import PlanProgram, compiled_peak_bytes

    n, h, rows, both = HEADS, HEAD_DIM, sizes.sequence, "forward-backward"
    work = Workload(seq_len=rows, heads=n, kv_heads=n, head_dim=h, dtype=DTYPE, passes=both)
    for kernel in kernels_here():
        plan = with_tile(parse_plan(f"ring/contiguous/{kernel}@ring=1"), work, "gpu")
        program = PlanProgram(work, plan, jax.devices())
        compiled, inputs = program.compile({}), program.random_inputs()
        jax.block_until_ready(compiled(*inputs))
        stats = jax.devices()[0].memory_stats() or {}
        held = stats.get("peak_bytes_in_use")  # of the process so far: the kernels run in turn, the leanest first
        yield {"plan": str(plan), "compiled_bytes": compiled_peak_bytes(compiled), "held_bytes": held}


def command(*arguments: str) -> Any:
    """What a command of stripectl prints as JSON.

    Raises:
        RuntimeError: it failed; its last line of stderr.
    """
    with tempfile.TemporaryDirectory() as folder:
        given = [*arguments, "--json", "--output", f"{folder}/run"]
        done = subprocess.run([sys.executable, "-m", "stripectl", *given], capture_output=True, text=True, cwd=ROOT)
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or ["it said nothing"])[-1])
    return json.loads(done.stdout)


ATTENTION = ("--heads", str(HEADS), "--head-dim", str(HEAD_DIM), "--dtype", DTYPE, "--pass", "forward-backward")


def profile(sizes: Sizes) -> Iterator[dict[str, Any]]:
    """An XLA profile of a step, and what is read in it."""
    for kernel in kernels_here():
        yield command("trace", f"ring/contiguous/{kernel}@ring=1", "--seqlen", str(sizes.sequence), *ATTENTION)


def ring_of_8(sizes: Sizes) -> Iterator[dict[str, Any]]:
    """Rings of eight such devices on clocks, from tiles that are timed on this one."""
    for kernel in kernels_here():
        given = ("--scheme", "ring", "--kernel", kernel, "--method", "simulated", "--seqlen", str(sizes.ring))
        yield command("bench", *given, *ATTENTION)


def training_step(sizes: Sizes) -> Iterator[dict[str, Any]]:
    """Two layers of the 1b model."""
    for kernel in kernels_here():
        model = ("--model", "1b", "--layers", "2", "--pass", "step", "--seqlen", str(sizes.step))
        plan = ("--plan", f"ring/contiguous/{kernel}@ring=1", "--method", "measured", "--time-budget", "20s")
        yield command("bench", *model, *plan)


PARTS = (exactness, block_pairs, tile_costs, memory, profile, ring_of_8, training_step)


def part(name: str, sizes: Sizes, out: Path) -> None:
    """Run a part in this process; what it has found is written as it comes."""
    rows: list[dict[str, Any]] = []
    for row in next(each for each in PARTS if each.__name__ == name)(sizes):
        rows.append(row)
        out.write_text(json.dumps(rows))


def device(environment: dict[str, str]) -> dict[str, Any] | str:
    """What JAX finds here, in a process of its own, or why it finds nothing."""
    code = "import json, jax; d = jax.devices()[0]; print(json.dumps([d.platform, d.device_kind, jax.__version__]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    if done.returncode:
        return (done.stderr.strip().splitlines() or ["Python ended without a word"])[-1]
    platform, kind, version = json.loads(done.stdout.splitlines()[-1])
    return {"platform": platform, "kind": kind, "jax": version}


def run_part(name: str, small: bool, environment: dict[str, str], limit_s: float) -> dict[str, Any]:
    """What a part found in a process of its own, and how it ended."""
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "found.json")
        command = [sys.executable, __file__, "--part", name, "--output", str(out), *(["--small"] if small else [])]
        try:
            done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=limit_s, cwd=ROOT)
            reason = None
            if done.returncode:
                reason = (done.stderr.strip().splitlines() or [f"ended with {done.returncode}"])[-1]
        except subprocess.TimeoutExpired:
            reason = f"took longer than the {limit_s:.0f} s that were left"
        found = json.loads(out.read_text()) if out.exists() else []
    wrong = [row for row in found if row.get("ok") is False]
    reason = reason or (f"{len(wrong)} of {len(found)} are not exact" if wrong else None)
    return {
        "status": "failed" if reason else "ok",
        "reason": reason,
        "took_s": time.monotonic() - start,
        "found": found,
    }


def installed(wheels: Path, folder: str) -> str | None:
    """Put wheels into a folder, without a network; why that failed, or None."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target", folder]
    done = subprocess.run([*command, *map(str, sorted(wheels.glob("*.whl")))], capture_output=True, text=True)
    return (done.stderr.strip().splitlines() or ["pip said nothing"])[-1] if done.returncode else None


def main() -> int:
    given = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    given.add_argument("--output", type=Path, help="the JSON file; default: benchmarks/gpu/DEVICE-jaxVERSION.json")
    given.add_argument("--wheels", type=Path, help="a folder of wheels that this Python lacks")
    given.add_argument("--small", action="store_true", help="small sizes on whatever device JAX finds")
    given.add_argument("--part", help=argparse.SUPPRESS)
    asked = given.parse_args()
    sizes = SMALL if asked.small else FULL
    if asked.part:
        part(asked.part, sizes, asked.output)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        if asked.wheels and (failure := installed(asked.wheels, folder)):
            print(f"error: cannot install the wheels of {asked.wheels}: {failure}", file=sys.stderr)
            return 3
        return check(asked, {**os.environ, "PYTHONPATH": os.pathsep.join([folder, str(ROOT)])})


def check(asked: argparse.Namespace, environment: dict[str, str]) -> int:
    """Run all parts, say a line of each, and write the file; the exit code."""
    environment.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # so that what a device holds can be read
    here = device(environment)
    if isinstance(here, str) or (here["platform"] != "gpu" and not asked.small):
        found = here if isinstance(here, str) else f"JAX {here['jax']} finds only {here['kind']} ({here['platform']})"
        remedy = "Try nvidia-smi, then pip install 'jax[cuda13]'."
        print(f"error: cannot check a GPU because none is usable here: {found}. {remedy}", file=sys.stderr)
        return 3
    name = "-".join([*here["kind"].lower().replace("nvidia", "").split(), f"jax{here['jax']}"])
    out = asked.output or ROOT / "benchmarks" / "gpu" / f"{name}.json"
    start, parts = time.monotonic(), dict[str, Any]()
    for each in PARTS:
        left_s = LIMIT_S - (time.monotonic() - start)
        print(f"{each.__name__} ...", flush=True)
        done = parts[each.__name__] = run_part(each.__name__, asked.small, environment, max(1.0, left_s))
        print(
            f"{each.__name__}: {done['reason'] or 'ok'} ({len(done['found'])} rows, {done['took_s']:.0f} s)", flush=True
        )
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps({"device": here, "python": sys.version.split()[0], "parts": parts}, indent=1) + "\n")
    print(f"written: {out}")
    return int(any(done["status"] != "ok" for done in parts.values()))


if __name__ == "__main__":
    sys.exit(main())
