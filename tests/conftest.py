"""Eight virtual CPU devices for every test of programs, whose compiler here is XLA without LLVM's optimisations: a test
runs a program once. Commands that tests start have the same compiler, and keep what it compiles for each other: many of
them start workers for the same programs. The fixture `users_compiler` gives a test's commands the compiler that users
have. And no deadlines, since how long an example takes says more of what else the machine does. Flags that XLA_FLAGS
holds are passed on."""

import gc
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import pytest
from hypothesis import settings

import stripectl.compat as compat
import stripectl.reporters.html.page as page
from stripectl.reporters.html.charts import Chart
from stripectl.workers.worker_group import ended_by_flag

DEVICES = "--xla_force_host_platform_device_count=8"
QUICK = (
    "--xla_backend_optimization_level=0",
    "--xla_cpu_parallel_codegen_split_count=1",
    *(["--xla_cpu_use_fusion_emitters=false"] if compat.is_older("jaxlib", "0.11") else []),
)
MAX_NEW_OBJECTS = 100_000  # between garbage collections, which with Python's limit take a tenth of tracing
FIRST = "PYTEST_XDIST_WORKER" not in os.environ  # the process that starts the others
COMPILED = tempfile.TemporaryDirectory(prefix="stripectl-tests-", ignore_cleanup_errors=True) if FIRST else None


def check_flags() -> None:
    """End the tests with a reason where XLA knows no such flag: the process that is told so ends without a word."""
    found = subprocess.run([sys.executable, "-c", "import jax; jax.devices()"], capture_output=True, text=True)
    if unknown := ended_by_flag(found.stderr):
        pytest.exit(str(unknown), returncode=unknown.exit_code)


def pytest_configure(config: pytest.Config) -> None:
    """Before any test is imported: XLA reads its flags once."""
    gc.set_threshold(MAX_NEW_OBJECTS)
    config.pluginmanager.register(LeftOut(config))
    own = [flag for flag in os.environ.get("XLA_FLAGS", "").split() if flag != DEVICES]
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["XLA_FLAGS"] = " ".join((*own, DEVICES, *QUICK))
    os.environ["PJRT_NPROC"] = (
        "16"  # threads: in TPU interpret mode devices wait for each other in calls back to Python
    )
    if FIRST:
        # For the processes of xdist, before they import NumPy. On busy cores the threads of a small matrix product spin
        # while they wait for each other, 25 times as long as the product takes.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        check_flags()
    # XLA spends a sixth of a compile on the lines of Python that an instruction comes from.
    os.environ["JAX_TRACEBACK_IN_LOCATIONS_LIMIT"] = "0"
    jax.config.update("jax_traceback_in_locations_limit", 0)
    jax.config.update("jax_platforms", "cpu")
    jax.devices()
    del os.environ["PJRT_NPROC"]
    if COMPILED:
        os.environ["JAX_COMPILATION_CACHE_DIR"] = COMPILED.name
        os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"


@pytest.fixture
def users_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands have the compiler that users have."""
    flags = os.environ["XLA_FLAGS"].split()
    monkeypatch.delenv("JAX_TRACEBACK_IN_LOCATIONS_LIMIT")
    monkeypatch.setenv("XLA_FLAGS", " ".join(flag for flag in flags if flag not in QUICK))


@pytest.fixture(scope="module")
def without_toolkit() -> Iterator[None]:
    """A CUDA toolkit that this machine happens to have does not help a compiler."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", "/usr/bin:/bin")
        for name in ("CUDA_ROOT", "CUDA_HOME", "CUDA_PATH", "CUDA_DIR", "LD_LIBRARY_PATH"):
            patch.delenv(name, raising=False)
        yield


@pytest.fixture(scope="session", autouse=True)
def equal_charts_are_drawn_once() -> Iterator[None]:
    """Commands of tests write pages that have many charts in common, and charts take half the time of a command."""
    draw, drawn = page.drawings, dict[tuple[object, ...], list[tuple[str, Any]]]()

    def drawings(chart: Chart, panels: int) -> list[tuple[str, Any]]:
        key = repr(chart.drawing), chart.wide, chart.one_size, panels
        if key not in drawn:
            drawn[key] = draw(chart, panels)
        return list(drawn[key])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page, "drawings", drawings)
        yield


settings.register_profile("stripectl", deadline=None)
settings.load_profile("stripectl")
LONG = ("test_kills.py", "test_large_runs.py", "test_plan_faults.py")  # minutes each, so begun first


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.name not in LONG)


def pytest_collection_finish() -> None:
    """What is imported and collected stays: no collection of garbage need look at it again."""
    gc.collect()
    gc.freeze()


class LeftOut:
    """How many tests of each part were not asked for, said in a line a part: a process of xdist tells the first."""

    def __init__(self, config: pytest.Config) -> None:
        self.reasons = dict(line.split(": ", 1) for line in config.getini("markers") if ": " in line)
        self.counts, self.keyword = Counter[str](), config.getoption("keyword")
        self.output: dict[str, dict[str, int]] | None = getattr(config, "workeroutput", None)

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        parts = [{name for mark in item.iter_markers() if (name := mark.name) in self.reasons} for item in items]
        if self.keyword and not all(parts):  # -k deselected them, which are of any part or of none
            return
        for names in parts:
            self.counts.update(names)
        if self.output is not None:
            self.output["left_out"] = dict(self.counts)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self.counts |= Counter(getattr(node, "workeroutput", {}).get("left_out", {}))

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        for name, count in sorted(self.counts.items()):
            terminalreporter.write_line(f"{name}: {count} tests left out: {self.reasons[name]}")
