"""Nights of runs, as a history keeps them."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from stripectl.results.measurement import Measurement
from stripectl.results.run import Run
from tests.support.factories import LONG, run_of, timed_ring
from tests.support.pages import HOSTILE

# Runs that differ by noise alone, 1 to 2 % around 1.
NOISE = (
    *(1.004, 0.988, 1.012, 0.997, 1.009, 0.981, 1.001, 1.017, 0.993, 0.986, 1.006, 0.999, 1.021, 0.991, 1.003),
    *(0.984, 1.011, 0.996, 1.014, 0.989, 1.002, 1.008, 0.979, 0.998, 1.005, 0.992, 1.018, 0.987, 1.0, 0.995),
)
FIRST = datetime(2026, 11, 1, 8, tzinfo=UTC)
EVIL = ("x'); DROP TABLE runs; --", '" OR 1=1 --', "\x1b[31mred\x00", *HOSTILE)
BUNDLES = {"source": "bundles"}


def night(number: int, *measurements: Measurement, commit: str | None = None, **environment: Any) -> Run:
    """The run of a night, of the fast layouts where no measurement is given."""
    given = measurements or (timed_ring("contiguous", 0.8), timed_ring("striped", 0.5))
    around = {"git": commit or f"{number:012x}", "host": {"processor": "a core", "cores": 2}} | environment
    when = FIRST + timedelta(days=number)
    return replace(run_of(*given, **around), id=f"night {number}", created=when.isoformat())


def rings_at(*levels: tuple[int, float]) -> list[Measurement]:
    """A ring measured so many times at each level, with noise."""
    times = [level for count, level in levels for _ in range(count)]
    return [timed_ring("striped", level * noise) for level, noise in zip(times, NOISE, strict=False)]


def past() -> list[Run]:
    """Eighteen nights, of which striped became slower; the last measures two plans that no other does."""
    runs = [
        night(number, m, timed_ring("zigzag", 0.4), versions={"jax": "2" if number > 11 else "1"})
        for number, m in enumerate(rings_at((12, 0.5), (6, 0.55)))
    ]
    new = [timed_ring("contiguous", 0.8), timed_ring("contiguous", 90.0, "simulated", LONG)]
    return [*runs[:-1], replace(runs[-1], measurements=[*runs[-1].measurements, *new])]
