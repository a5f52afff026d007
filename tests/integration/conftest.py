from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.hosts import Slice


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Callable[[int], Slice]]:
    """Makes so many hosts."""
    with ExitStack() as stack:
        yield lambda count: stack.enter_context(Slice(count, tmp_path))
