"""Progress messages for the user who waits."""

from collections.abc import Callable

Say = Callable[[str, int, int], None]  # the current step in words, the number of steps done, and of all steps


def quiet(now: str, done: int, total: int) -> None:
    """Print nothing."""
