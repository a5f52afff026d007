"""What disturbs a measurement is seen: by real workers, and in words."""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest

from stripectl.results.environment import cores
from stripectl.results.findings import Noise
from stripectl.results.noise import BUSY_CORE_SHARE, Disturbances, SampleAnswer, disturbances
from stripectl.statistics.drift import drift
from stripectl.workers.worker_group import WorkerGroup
from tests.support.factories import SMALL, noisy_ring

CALM = Noise(yardstick_s=(1.0,) * 9)
SEEN = SampleAnswer(seconds=1.0, yardstick_s=0.1, elapsed_s=2.0, others_s=0.5, throttled=0, compiled=0)


@pytest.mark.parametrize(
    ("guards", "said"),
    [
        ({}, []),
        ({"yardstick_s": (1.0, 1.0, 1.5, 1.5)}, ["the machine's own speed varied by 40%"]),
        ({"others": 0.2}, ["other programs took 20% of its cores"]),
        ({"throttled": 3}, ["the clock was throttled 3 times"]),
        ({"compiled": 1}, ["1 samples contained a compilation and were repeated"]),
    ],
)
def test_disturbances_in_words(guards: dict, said: list[str]) -> None:
    assert disturbances(replace(noisy_ring("striped", 1.0), noise=replace(CALM, **guards))) == said


def test_a_drift_is_seen_and_noise_is_not() -> None:
    rising = [1.0 + 0.01 * at for at in range(12)]
    assert drift(rising) == pytest.approx(0.11 / 1.055)
    assert drift(rising[::-1]) == pytest.approx(-0.11 / 1.055)
    assert drift(rising[:5]) == 0 and drift([1.0] * 12) == 0
    assert drift(noisy_ring("striped", 1.0, noise=0.05).samples_s) == 0
    found = disturbances(replace(noisy_ring("striped", 1.0), samples_s=tuple(rising)))
    assert found == ["samples drift by +10% from the first to the last"]


def test_a_sample_with_a_compilation_in_it_does_not_count() -> None:
    watch = Disturbances()
    assert watch.seconds([SEEN, replace(SEEN, compiled=1, seconds=9.0)]) is None
    assert watch.seconds([SEEN, replace(SEEN, seconds=3.0, yardstick_s=0.2)]) == 3.0
    assert watch.noise == Noise(yardstick_s=(0.2,), others=0.25, throttled=0, compiled=1)


@pytest.fixture
def busy_core() -> Iterator[int]:
    """A core that another program keeps busy."""
    core = cores()[0]
    code = f"import os; os.sched_setaffinity(0, {{{core}}})\nwhile True: pass"
    process = subprocess.Popen([sys.executable, "-c", code])
    yield core
    process.kill()
    process.wait()


@pytest.mark.hosts
@pytest.mark.usefixtures("users_compiler")
def test_a_worker_sees_another_program_on_its_core(busy_core: int) -> None:
    with WorkerGroup(1) as devices:
        work = replace(SMALL, seq_len=2**15).to_json()
        devices.ask("prepare", key="0", workload=work, plan="ring/contiguous/xla@tile=512", warmup=1, flags={})
        seen = [devices.ask("sample", key="0")[0] for _ in range(8)]
        assert os.sched_getaffinity(devices.workers[0].process.pid) == {busy_core}  # type: ignore
    share = sum(each["others_s"] for each in seen) / sum(each["elapsed_s"] for each in seen)
    assert BUSY_CORE_SHARE < share < 1.0
    assert all(each["seconds"] > 0 and each["yardstick_s"] > 0 for each in seen)
    assert not any(each["compiled"] for each in seen)
