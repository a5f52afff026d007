"""A step's timeline at the resolution of its picture: the kind that fills most of a moment is the moment's kind."""

import itertools
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

KINDS = ("compute", "hidden", "exposed", "skew", "idle")
BINS = 500  # moments of a timeline that is stored


def by_kind(segments: Iterable[tuple[str, float, float]]) -> dict[str, np.ndarray]:
    """The intervals of each kind, from (kind, start, end)."""
    found: dict[str, list[Sequence[float]]] = {kind: [] for kind in KINDS}
    for kind, start, end in segments:
        if kind in found and start < end:
            found[kind].append((start, end))
    return {kind: np.array(intervals, float).reshape(-1, 2) for kind, intervals in found.items()}


def moments(parts: Mapping[str, np.ndarray], end_s: float, count: int) -> list[str]:
    """The kind of each of `count` moments from 0 to `end_s`, from the intervals of each kind; moments that nothing
    covers are idle."""
    edges = np.linspace(0.0, end_s, count + 1)
    busy = [np.diff(covered(parts[kind], edges)) for kind in KINDS[:-1]]
    shares = np.array([*busy, np.diff(edges) - sum(busy)])
    return [KINDS[at] for at in shares.argmax(axis=0)]


def merge_moments(kinds: Sequence[str], end_s: float) -> list[tuple[str, float, float]]:
    """Equal moments as (kind, start, end), with adjacent moments of one kind merged."""
    edges = np.linspace(0.0, end_s, len(kinds) + 1).tolist()
    turns = [0, *(at for at in range(1, len(kinds)) if kinds[at] != kinds[at - 1]), len(kinds)]
    return [(kinds[a], edges[a], edges[b]) for a, b in itertools.pairwise(turns)]


def covered(intervals: np.ndarray, at: np.ndarray) -> np.ndarray:
    """The seconds of intervals before each moment."""
    return seconds_before(intervals[:, 0], at) - seconds_before(intervals[:, 1], at)


def seconds_before(moments_s: np.ndarray, at: np.ndarray) -> np.ndarray:
    """The seconds from each of `moments_s` that has passed to `at`, added up."""
    ordered = np.sort(moments_s)
    passed = np.searchsorted(ordered, at)
    return at * passed - np.concatenate([[0.0], np.cumsum(ordered)])[passed]
