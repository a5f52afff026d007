"""Eight virtual CPU devices for every test of programs, whose compiler here is XLA without LLVM's optimisations: a test
runs a program once. Commands that tests start have the compiler that users have. And no deadlines, since how long an
example takes says more of what else the machine does."""

import os

import jax
from hypothesis import settings

DEVICES = "--xla_force_host_platform_device_count=8"
QUICK = (
    "--xla_backend_optimization_level=0",
    "--xla_cpu_use_fusion_emitters=false",
    "--xla_cpu_parallel_codegen_split_count=1",
)

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = " ".join((DEVICES, *QUICK))
jax.config.update("jax_platforms", "cpu")
jax.devices()  # XLA reads its flags once
os.environ["XLA_FLAGS"] = DEVICES
settings.register_profile("stripectl", deadline=None)
settings.load_profile("stripectl")
