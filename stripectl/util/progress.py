"""Progress: what is told to whoever waits."""

from collections.abc import Callable

Say = Callable[[str, int, int], None]  # what runs now, how many steps are done, how many there are


def quiet(now: str, done: int, total: int) -> None:
    """Says nothing."""
