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
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
LIMIT_S = 480.0  # of all parts
HEADS, HEAD_DIM, DTYPE = 8, 128, "bfloat16"
THREADS = 8  # that compile at the same time


class Sizes(NamedTuple):
    """Rows of what is timed: square block pairs, few queries beside many keys, sides of tiles, and a whole sequence."""

    blocks: tuple[int, ...]
    queries: tuple[int, ...]
    keys: int
    other_heads: tuple[int, ...]  # of pairs with heads of 64 and 256
    tiles: tuple[int, ...]
    sequence: int
    ring: int  # of the simulated ring of 8
    step: int


FULL = Sizes(
    (2**11, 2**12, 2**13, 2**14, 2**15),
    (256, 1024),
    2**14,
    (2**12, 2**14),
    (512, 1024, 2048),
    2**15,
    2**17,
    2**12,
)
SMALL = Sizes((256,), (64,), 256, (256,), (128,), 512, 2**11, 256)


def seconds(function: Callable[..., Any], *inputs: Any) -> float:
    """The median of several runs after the first."""
    from stripectl.measure.timing import typical

    return typical(function, *inputs)


def normal(*shapes: tuple[int, ...], dtype: str = DTYPE) -> list[Any]:
    import jax

    keys = jax.random.split(jax.random.key(0), len(shapes))
    return [jax.random.normal(key, shape, dtype) for key, shape in zip(keys, shapes, strict=True)]


def kernels_here() -> list[str]:
    """The kernels that run on this platform, of those that are checked."""
    import jax

    if jax.default_backend() != "gpu":
        return ["xla"]
    from stripectl.core.workload import Workload
    from stripectl.kernels.tokamax_gpu import about

    work = Workload(seq_len=2**12, heads=HEADS, kv_heads=HEADS, head_dim=HEAD_DIM, dtype=DTYPE)
    major, minor = map(int, jax.devices()[0].compute_capability.split("."))
    return ["xla", "cudnn", *([] if about.why_unsupported(work, None, "gpu", (major, minor)) else ["tokamax_gpu"])]


def exactness(sizes: Sizes) -> Iterator[dict[str, Any]]:
    """Every pair of shards of a ring of four, on one device: values and gradients against float64."""
    import jax.numpy as jnp
    import numpy as np

    from stripectl.core.defaults import usual_tile
    from stripectl.core.layout import layouts
    from stripectl.core.plan import parse_plan
    from stripectl.core.sequence_sharding import sequence_sharding
    from stripectl.core.workload import Workload
    from stripectl.execute.reference import reference_attention
    from stripectl.execute.verification import tolerance

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
        found = whole_ring(plan, ring, [array[:, :, order] for array in arrays])
        errors = {
            name: float(np.max(np.abs(np.float64(one) - other[:, :, order])) / np.max(np.abs(other)))
            for name, one, other in zip(("out", "dq", "dk", "dv"), found, expected, strict=True)
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
    import jax.numpy as jnp
    import numpy as np

    return [[jnp.asarray(part) for part in np.split(array, plan.shards, axis=2)] for array in arrays]


def ring_programs(work: Any, plan: Any, arrays: list[Any]) -> RingPrograms:
    import jax
    import jax.numpy as jnp

    from stripectl.core.kernel import kernels
    from stripectl.core.sequence_sharding import sequence_sharding
    from stripectl.execute.attend import JaxAttend, Saved

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
    import jax.numpy as jnp
    import numpy as np

    from stripectl.execute.attend import Saved

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


class Pair(NamedTuple):
    """A pair of shards: its queries, its keys, the part of them that a mask keeps, and the size of a head."""

    rows: int
    cols: int
    band: str
    head_dim: int = HEAD_DIM


def block_pairs(sizes: Sizes) -> Iterator[dict[str, Any]]:
    """Pairs of shards as a ring meets them, by the kernels, beside the library's own full and causal attention."""
    bands, here, library = ("full", "causal"), kernels_here(), "jax.nn.dot_product_attention"
    square = [Pair(rows, rows, band) for rows in sizes.blocks for band in bands]
    others = [Pair(rows, sizes.keys, "full") for rows in sizes.queries] + [Pair(sizes.keys, sizes.keys, "later")]
    heads = [Pair(rows, rows, band, size) for size in (64, 256) for rows in sizes.other_heads for band in bands]
    jobs = [(kernel, pair) for pair in (*square, *others, *heads) for kernel in here]
    jobs += [(library, pair) for pair in square if "cudnn" in here]

    def prepared(job: tuple[str, Pair]) -> tuple[Any, Any]:
        name, pair = job
        return library_passes(pair) if name == library else kernel_passes(name, pair)

    with ThreadPoolExecutor(THREADS) as threads:
        ready = list(threads.map(prepared, jobs))
    for (name, pair), (forward, other) in zip(jobs, ready, strict=True):
        forward_s, other_s = seconds(*forward), seconds(*other)
        backward_s = other_s - forward_s if name == library else other_s  # the library's other program is both passes
        yield {"kernel": name, **pair._asdict(), "forward_s": forward_s, "backward_s": backward_s}


def compiled(function: Callable[..., Any], *inputs: Any) -> tuple[Any, ...]:
    """A compiled function and its inputs."""
    import jax

    return jax.jit(function).lower(*inputs).compile(), *inputs


def kernel_passes(kernel: str, pair: Pair) -> tuple[Any, Any]:
    """Both passes of a kernel on a pair of shards, with their inputs."""
    import jax.numpy as jnp

    from stripectl.core.kernel import kernels
    from stripectl.core.layout import UNBOUNDED, MaskBlock

    rows, cols, band, head_dim = pair
    about, module = kernels[kernel], kernels[kernel].load()
    tile, shape = about.largest_tile(about.default_tile("gpu"), min(rows, cols)), (1, HEADS, rows, head_dim)
    q, k, v, dout = normal(shape, (1, HEADS, cols, head_dim), (1, HEADS, cols, head_dim), shape)
    zeros, row = jnp.zeros(shape, jnp.float32), jnp.zeros(shape[:3], jnp.float32)
    bands = [MaskBlock(0, 0, rows, cols, -UNBOUNDED, {"full": UNBOUNDED, "causal": 0, "later": -1}[band])]
    lse = row + jnp.log(float(cols))
    return (
        compiled(
            lambda q, k, v, *state: module.forward(q, k, v, state, bands, tile), q, k, v, zeros, row + module.EMPTY, row
        ),
        compiled(lambda *arrays: module.backward(*arrays, bands, tile), q, k, v, dout, lse, row, zeros),
    )


def library_passes(pair: Pair) -> tuple[Any, Any]:
    """JAX's public attention by cuDNN: its forward pass, and both passes."""
    import jax

    shape, keys = ((1, size, HEADS, pair.head_dim) for size in (pair.rows, pair.cols))
    q, k, v, dout = normal(shape, keys, keys, shape)

    def attention(q: Any, k: Any, v: Any) -> Any:
        return jax.nn.dot_product_attention(q, k, v, is_causal=pair.band == "causal", implementation="cudnn")

    def both(q: Any, k: Any, v: Any, dout: Any) -> Any:
        out, transpose = jax.vjp(attention, q, k, v)
        return out, transpose(dout)

    return compiled(attention, q, k, v), compiled(both, q, k, v, dout)


def tile_costs(sizes: Sizes) -> Iterator[dict[str, Any]]:
    """Blocks of the xla kernel by tile, as a bench times them to simulate from."""
    from stripectl.costs.sources.timed_tiles import BANDS
    from stripectl.measure.session import Session

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

    from stripectl.core.defaults import usual_tile
    from stripectl.core.plan import parse_plan
    from stripectl.core.workload import Workload
    from stripectl.execute.program import PlanProgram, compiled_peak_bytes

    n, h, rows, both = HEADS, HEAD_DIM, sizes.sequence, "forward-backward"
    work = Workload(seq_len=rows, heads=n, kv_heads=n, head_dim=h, dtype=DTYPE, passes=both)
    ready = list[tuple[int, str, Any, Any]]()
    for kernel in kernels_here():
        plan = parse_plan(f"ring/contiguous/{kernel}@ring=1")
        plan = replace(plan, tile=usual_tile(plan, work, "gpu"))
        program = PlanProgram(work, plan, jax.devices())
        compiled = program.compile({})
        ready.append((compiled_peak_bytes(compiled) or 0, str(plan), compiled, program))
    for compiled_bytes, plan, compiled, program in sorted(ready, key=lambda each: each[0]):
        inputs = program.random_inputs()
        jax.block_until_ready(compiled(*inputs))
        del inputs
        stats = jax.devices()[0].memory_stats() or {}
        held = stats.get("peak_bytes_in_use")  # of the process so far, so the leanest plan runs first
        yield {"plan": plan, "compiled_bytes": compiled_bytes, "held_bytes": held}


def command(*arguments: str) -> Any:
    """The JSON that a command of stripectl prints.

    Raises:
        RuntimeError: it failed; why plans of its run failed, or its last line of stderr.
    """
    with tempfile.TemporaryDirectory() as folder:
        given = [*arguments, "--json", "--output", f"{folder}/run"]
        done = subprocess.run([sys.executable, "-m", "stripectl", *given], capture_output=True, text=True, cwd=ROOT)
    if not done.returncode:
        return json.loads(done.stdout)
    run = json.loads(done.stdout) if done.stdout.startswith("{") else {"measurements": []}
    reasons = [f"{each['plan']}: {each['reason']}" for each in run["measurements"] if each["reason"]]
    raise RuntimeError("; ".join(reasons) or (done.stderr.strip().splitlines() or ["it said nothing"])[-1])


ATTENTION = ("--heads", str(HEADS), "--head-dim", str(HEAD_DIM), "--dtype", DTYPE, "--pass", "forward-backward")


# Plans of one device by kernels that have no ring of shards here, with their options.
VERIFIED = (
    ("ring/contiguous/xla@ring=1", "--dtype", "float32"),
    ("vanilla/contiguous/dense", "--dtype", DTYPE),
    ("lasp2/contiguous/chunked@ring=1", "--dtype", DTYPE),
    ("lasp2/contiguous/chunked@ring=1", "--dtype", "float32"),
    *(
        ("linear_scan/contiguous/gated@ring=1", "--dtype", DTYPE, "--recurrence", each)
        for each in ("gdn", "kda", "mamba2")
    ),
)


def verified(sizes: Sizes) -> Iterator[dict[str, Any]]:
    """Measured plans, each compared with its reference in float64, as every measured plan is."""

    def found(given: tuple[str, ...]) -> dict[str, Any]:
        plan, *options = given
        shape = ("--seqlen", str(sizes.step), "--heads", "4", "--head-dim", "64", "--pass", "forward-backward")
        row: dict[str, Any] = {"plan": plan, "options": options}
        try:
            run = command("bench", "--plan", plan, *shape, *options, "--method", "measured", "--time-budget", "2s")
        except RuntimeError as failure:
            return row | {"ok": False, "reason": str(failure)}
        (one,) = run["measurements"]
        return row | {"ok": True, "check": one["check"]}

    with ThreadPoolExecutor(len(VERIFIED)) as threads:  # timings do not matter here
        yield from threads.map(found, VERIFIED)


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
    """Two layers of the 1b model, with their profile."""
    for kernel in kernels_here():
        model = ("--model", "1b", "--layers", "2", "--pass", "step", "--seqlen", str(sizes.step))
        yield command("trace", f"ring/contiguous/{kernel}@ring=1", *model)


UNTIMED = (exactness, verified, memory)  # run at the same time
TIMED = (block_pairs, tile_costs, profile, ring_of_8, training_step)
PARTS = (*UNTIMED, *TIMED)


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
        return check(asked, {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), folder])})


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

    def run(each: Callable[..., Any]) -> None:
        left_s = LIMIT_S - (time.monotonic() - start)
        print(f"{each.__name__} ...", flush=True)
        done = parts[each.__name__] = run_part(each.__name__, asked.small, environment, max(1.0, left_s))
        print(
            f"{each.__name__}: {done['reason'] or 'ok'} ({len(done['found'])} rows, {done['took_s']:.0f} s)", flush=True
        )
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps({"device": here, "python": sys.version.split()[0], "parts": parts}, indent=1) + "\n")

    with ThreadPoolExecutor(len(UNTIMED)) as threads:
        list(threads.map(run, UNTIMED))
    for each in TIMED:
        run(each)
    print(f"written: {out}")
    return int(any(done["status"] != "ok" for done in parts.values()))


if __name__ == "__main__":
    sys.exit(main())
