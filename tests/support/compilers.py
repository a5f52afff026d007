"""Which compilers for machines that are not here are installed, and marks of tests that need them."""

import pytest

from stripectl.compile.toolchain import TOOLCHAINS

NEVER_MISSING = [kind for kind, tools in TOOLCHAINS.items() if tools.missing is None]
installed = pytest.mark.skipif(len(NEVER_MISSING) < 2, reason="a compiler is missing: make .venv/dev")
needs_gpu = pytest.mark.skipif("gpu" not in NEVER_MISSING, reason="no GPU compiler: make .venv/dev")


def needs(test):
    """A test that compiles for long."""
    return pytest.mark.compilers(installed(test))
