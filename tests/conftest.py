"""Eight virtual CPU devices for every test of programs, whose compiler here is XLA without LLVM's optimisations: a test
runs a program once. Commands that tests start have the compiler that users have, and keep what it compiles for each
other: many of them start workers for the same programs. And no deadlines, since how long an example takes says more of
what else the machine does."""

import gc
import os
import tempfile

import jax
import pytest
from hypothesis import settings

DEVICES = "--xla_force_host_platform_device_count=8"
QUICK = (
    "--xla_backend_optimization_level=0",
    "--xla_cpu_use_fusion_emitters=false",
    "--xla_cpu_parallel_codegen_split_count=1",
)

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = " ".join((DEVICES, *QUICK))
os.environ["PJRT_NPROC"] = "16"  # threads: in TPU interpret mode devices wait for each other in calls back to Python
jax.config.update("jax_platforms", "cpu")
jax.devices()  # XLA reads its flags once
del os.environ["PJRT_NPROC"]
os.environ["XLA_FLAGS"] = DEVICES
if "PYTEST_XDIST_WORKER" not in os.environ:  # whose processes take it from the one that starts them
    compiled = tempfile.TemporaryDirectory(prefix="stripectl-tests-", ignore_cleanup_errors=True)
    os.environ["JAX_COMPILATION_CACHE_DIR"] = compiled.name
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
settings.register_profile("stripectl", deadline=None)
settings.load_profile("stripectl")
LONG = ("test_kills.py", "test_large_runs.py", "test_plan_faults.py")  # minutes each, so begun first


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path.name not in LONG)


def pytest_collection_finish() -> None:
    """What is imported and collected stays: no collection of garbage need look at it again."""
    gc.collect()
    gc.freeze()
