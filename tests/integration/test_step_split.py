"""How `make check-gpu` divides a profiled step among its operations, and counts their FLOPs and bytes."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from benchmarks.check_gpu.program_work import Work, work_of
from benchmarks.check_gpu.step_profile import middle_step
from benchmarks.check_gpu.step_split import split_step
from benchmarks.check_gpu.step_table import least_s, operation_row, table
from stripectl.analysis.accuracy.steps import step_workload
from stripectl.core.plan import parse_plan
from stripectl.hardware.profile import Hardware
from stripectl.hlo.module import parse_module
from stripectl.profiling.capture import capture
from stripectl.profiling.events import Device, Events, Execution, Origin
from stripectl.profiling.folder import HLO
from stripectl.simulate.step_program import run_step
from tests.support.compilers import needs_gpu

TURNS, SIDE = 5, 64
# As XLA prints it for a GPU: a product by a library with its workspace, casts, a loop that updates an array in place.
GPU = parse_module((Path(__file__).parents[1] / "data" / "gpu_step.hlo.txt").read_text())


@pytest.mark.parametrize(
    ("name", "work"),
    [
        # The compiler added the cast, so it belongs to the product that reads it.
        ("cast", Work("feed_forward", "copies and casts", "forward", 0, "", 128 * 64 * (4 + 2))),
        (
            "gemm",
            Work("feed_forward", "matrices", "forward", 2 * 16 * 128 * 64, "bf16", 2 * (16 * 128 + 128 * 64 + 16 * 64)),
        ),
        ("stored", Work("other", "copies and casts", "forward", 0, "", 16 * 64 * (2 + 4) + 4)),  # and the turn
        ("less", Work("other", "element-wise", "forward", 0, "", 4 + 4 + 1)),
        ("fmha", Work("attention", "kernel", "forward", 0, "", 2 * 2 * 2 * 16 * 64)),
        ("spread", Work("embedding", "gather and scatter", "backward", 0, "", 16 * 4 + 3 * 16 * 64 * 4)),
        ("wrong_order", Work("head", "matrices", "backward", 2 * 16 * 128 * 16, "f32", 4 * (2 * 16 * 128 + 128 * 16))),
        ("norms", Work("projections", "norm", "again", 0, "", 4 * (16 * 128 + 16))),
        ("loop", Work("other", "element-wise", "forward", 0, "", 0)),
    ],
)
def test_the_work_of_an_operation_is_read_from_the_program_of_a_gpu(name: str, work: Work) -> None:
    assert work_of(GPU)[name] == work


def events(*rows: tuple[str, int, float, float]) -> Events:
    names = tuple(dict.fromkeys(name for name, *_ in rows))
    which, lines = ([names.index(row[0]) for row in rows], [row[1] for row in rows])
    return Events(names, np.array(which), np.array(lines), *(np.array([row[at] for row in rows]) for at in (2, 3)))


def test_each_moment_of_a_step_belongs_to_the_operations_that_run_in_it() -> None:
    ran = events(
        ("earlier", 0, 0.0, 0.5),
        ("loop", 0, 2.0, 12.0),
        ("gemm", 0, 3.0, 6.0),
        ("norms", 1, 5.0, 9.0),  # one second beside the product, on another line
        ("gemm", 0, 10.0, 11.0),
        ("MemcpyD2D", 0, 13.0, 14.0),
        ("kernel_of_a_library", 0, 13.5, 15.0),  # which begins before the copy ends, on the same line
    )
    device = Device("GPU 0", "gpu", ran, ran, [], origins=tuple(Origin("m", f"k_{name}") for name in ran.names))
    split = split_step(device, Execution("m", 0, 1.0, np.inf), work_of(GPU), frozenset({"loop"}))
    found = {each.name: (each.times, each.seconds, each.work.part, each.work.kind) for each in split.operations}
    assert found == {
        "gemm": (2, 3.5, "feed_forward", "matrices"),
        "norms": (1, 3.5, "projections", "norm"),
        "kernel_of_a_library": (1, 1.5, "other", "kernel"),
        "MemcpyD2D": (1, 0.5, "other", "copies and casts"),
    }
    assert (split.seconds, split.wait_s, split.gaps_s) == (14.0, 2.0, 3.0)
    assert split.operations[0].kernels == ("k_gemm",)


def test_the_split_of_a_real_profile_adds_up_to_the_step(tmp_path: Path) -> None:
    def layer(x: jax.Array, weight: jax.Array) -> tuple[jax.Array, None]:
        with jax.named_scope("projections"):
            with jax.named_scope("norm"):
                x = x * lax.rsqrt(jnp.mean(x**2, -1, keepdims=True))
            x = x @ weight
        with jax.named_scope("feed_forward"):
            return jnp.sin(x) + jnp.cos(x) @ weight, None

    def step(x: jax.Array, weights: jax.Array) -> jax.Array:
        x, _ = lax.scan(layer, x, weights)
        with jax.named_scope("head"):
            return jnp.sum(x)

    inputs = jnp.ones((SIDE, SIDE)), jnp.ones((TURNS, SIDE, SIDE))
    compiled = jax.jit(step).lower(*inputs).compile()
    compiled(*inputs).block_until_ready()
    (tmp_path / HLO).write_text(compiled.as_text() or "")
    capture(lambda: compiled(*inputs), 3, tmp_path, lambda: None)
    split = middle_step(tmp_path)
    assert len({each.name for each in split.operations}) == len(split.operations)
    seconds = sum(each.seconds for each in split.operations) + split.wait_s + split.gaps_s
    assert seconds == pytest.approx(split.seconds, rel=1e-9) and min(split.wait_s, split.gaps_s) >= 0
    products = {
        (each.work.part, each.work.flops): each.times for each in split.operations if each.work.kind == "matrices"
    }
    assert products == {("projections", 2.0 * SIDE**3): TURNS, ("feed_forward", 2.0 * SIDE**3): TURNS}
    assert {"projections", "feed_forward", "head"} <= {each.work.part for each in split.operations}
    assert any(each.work.kind == "norm" for each in split.operations)


def test_an_operation_takes_at_least_its_flops_or_its_bytes() -> None:
    h200 = Hardware.load("h200")
    wide = Work("head", "matrices", "backward", 494.5e9, "f32", 4.8e6)
    assert least_s(wide, 3, h200) == pytest.approx(3e-3)
    assert least_s(wide._replace(nbytes=9.6e9), 3, h200) == pytest.approx(6e-3)
    assert least_s(wide._replace(dtype="f8e4m3fn"), 3, h200) is None


def test_the_table_has_a_line_for_each_part_and_kind_and_says_what_the_prediction_lacks() -> None:
    h200 = Hardware.load("h200")
    operations = [
        ("gemm", Work("head", "matrices", "forward", 989e9, "bf16", 0.0), 2, 3e-3),
        ("cast", Work("head", "copies and casts", "forward", 0.0, "", 4.8e9), 1, 1.5e-3),
        ("fmha", Work("attention", "kernel", "forward", 0.0, "", 0.48e9), 1, 0.7e-3),
        ("adam", Work("optimizer", "element-wise", "forward", 0.0, "", 4.8e9), 1, 1e-3),
    ]
    timed = {"model": "1b", "layers": 2, "tokens": 4096, "bench_s": 8e-3, "waited_for_s": 9e-3, "host_s": 1e-3}
    predicted = {"seconds": 4e-3, "plan": "ring", "parts": {"attention": 0.5e-3, "head": 2e-3, "optimizer": 1.5e-3}}
    step = {"seconds": 8.2e-3, "wait_s": 0.5e-3, "gaps_s": 1.5e-3}
    figures = [operation_row(name, work, times, h200, seconds) for name, work, times, seconds in operations]
    first, second, _, *lines, last = table([{"predicted": predicted}, {"times": timed}, {"step": step}, *figures])
    assert first == "8.00 ms measured, 4.00 ms predicted, 2.00 times: 1b, 2 layers, 4096 tokens, ring"
    assert second.startswith(
        "times: 8.00 ms in a bench, 9.00 ms waited for one by one, of which the host needs 1.00 ms"
    )
    assert [" ".join(line.split()) for line in lines] == [
        "part operations predicted profiled at least run",
        "attention 500 us 700 us 100 us 1",
        "kernel 700 us 100 us 1",
        "head 2.00 ms 4.50 ms 3.00 ms 3",
        "matrices 3.00 ms 2.00 ms 2",
        "copies and casts 1.50 ms 1.00 ms 1",
        "optimizer 1.50 ms 1.00 ms 1.00 ms 1",
        "element-wise 1.00 ms 1.00 ms 1",
        "wait for the first operation 500 us",
        "gaps between operations 1.50 ms",
        "step 4.00 ms 8.20 ms 4.10 ms 5",
    ]
    # Of attention at least what is predicted: 3 + 0.5 + 1 ms of work, in 6.2 ms of operations.
    assert last == (
        "4.20 ms beyond the prediction: 500 us of work that it leaves out, 1.70 ms because operations are slower than "
        "the machine's rates, 2.00 ms of waits and gaps"
    )


@pytest.mark.compilers
@needs_gpu
@pytest.mark.usefixtures("users_compiler")
def test_the_matrices_of_a_step_that_is_compiled_for_an_h200_are_those_that_are_predicted() -> None:
    """By their FLOPs at the peak rate, except of the head, half of whose products multiply float32, at half the rate.
    Predicted times follow the shares of the peak rate that NVIDIA measured."""
    command = [sys.executable, "-m", "benchmarks.check_gpu.arithmetic"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    products = [float(line[1]) for line in lines if line[0] == "matrices"]
    workload = replace(step_workload("1b", 2**12), layers=2)
    peak = Hardware.load("h200").flops_per_s(workload.dtype)
    assert peak
    flops = run_step(workload, parse_plan("ring/contiguous/cudnn@ring=1")).flops
    peak_ms = {part: round(1e3 * each / peak, 2) for part, each in flops.items()}
    assert peak_ms == {"projections": 1.11, "feed_forward": 2.05, "head": 2.17} and products == [1.11, 2.05, 3.26]
    predicted = {line[0]: float(line[1]) for line in lines if line[0] in peak_ms}
    assert predicted == {"projections": 1.5, "feed_forward": 2.91, "head": 2.93} and lines[-1][:2] == ["step", "10.4"]
