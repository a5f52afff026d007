"""Disturbances of a sample: the yardstick, other programs on its cores, a throttled clock, compilations."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from stripectl.results.noise import SampleAnswer

YARDSTICK_ROWS = {"cpu": 384, "gpu": 4096, "tpu": 4096}  # of the yardstick, a matmul of a few milliseconds
REPEATS = 2
COMPILED = "/jax/core/compile/backend_compile_duration"
THROTTLES = "/sys/devices/system/cpu/cpu{}/thermal_throttle/core_throttle_count"
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Yardstick:
    """Counts disturbances from its creation on; `beside` runs a function and returns the disturbances during it."""

    def __init__(self) -> None:
        self.compiled = 0
        jax.monitoring.register_event_duration_secs_listener(self._heard)
        device = jax.local_devices()[0]
        a = jax.device_put(jnp.ones((YARDSTICK_ROWS[device.platform],) * 2, jnp.float32), device)
        product = jax.jit(jnp.matmul).lower(a, a).compile()
        self.run: Callable[[], Any] = lambda: product(a, a)
        self.yardstick_s()

    def yardstick_s(self) -> float:
        """Seconds of the matmul."""
        start = time.perf_counter()
        for _ in range(REPEATS):
            jax.block_until_ready(self.run())
        return (time.perf_counter() - start) / REPEATS

    def _heard(self, event: str, duration_secs: float, **_: Any) -> None:
        self.compiled += event == COMPILED

    def beside(self, run: Callable[[], float]) -> SampleAnswer:
        """The seconds that a run reports, and the disturbances during it (`stripectl.results.noise.Disturbances`)."""
        before_s, compiled, throttled = self.yardstick_s(), self.compiled, throttles()
        began, own, busy = time.perf_counter(), time.process_time(), busy_s()
        seconds = run()
        others = busy_s() - busy - (time.process_time() - own)
        elapsed_s = (time.perf_counter() - began) * len(os.sched_getaffinity(0))
        return SampleAnswer(
            seconds=seconds,
            yardstick_s=(before_s + self.yardstick_s()) / 2,
            others_s=others,
            elapsed_s=elapsed_s,
            throttled=throttles() - throttled,
            compiled=self.compiled - compiled,
        )


def busy_s() -> float:
    """Seconds that the cores of this process were busy, or lent to other machines, since they started."""
    mine, total = {f"cpu{core}" for core in os.sched_getaffinity(0)}, 0
    try:
        lines = Path("/proc/stat").read_text().splitlines()
    except OSError:
        return time.process_time()  # other processes are not visible
    for name, user, nice, system, _, _, irq, softirq, steal, *_ in (
        each.split() for each in lines if each[:3] == "cpu"
    ):
        total += sum(map(int, (user, nice, system, irq, softirq, steal))) if name in mine else 0
    return total / TICKS_PER_S


def throttles() -> int:
    """How often the clocks of this process's cores were throttled since they started, where the system counts this."""
    count = 0
    for core in os.sched_getaffinity(0):
        try:
            count += int(Path(THROTTLES.format(core)).read_text())
        except (OSError, ValueError):
            continue
    return count
