"""Eight virtual CPU devices for every test of programs, set before JAX is imported; and no deadlines, since how long an
example takes says more of what else the machine does."""

import os

from hypothesis import settings

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
settings.register_profile("stripectl", deadline=None)
settings.load_profile("stripectl")
