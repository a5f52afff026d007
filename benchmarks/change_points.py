"""How often the detection of change points finds a change where there is none, and where there is one.

    python benchmarks/change_points.py

Series are made: a value a run, log-normal with a spread between runs, and now and then an outlier, a run that something
else on the machine made 5 to 60 % slower. Prints two tables in percent of series: false alarms of series that do not
change, and of series with a step those in which it is found (at most one run off) and what else is.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from stripectl.statistics.change_points import level_changes

SERIES = 500  # of a row of a table, for each spread and number of runs
SPREADS = (0.01, 0.02, 0.05)
RUNS = (10, 20, 50, 100)
STEPS = (0.05, 0.1, 0.2)
SPLITS = ((5, 5), (12, 3), (20, 3), (20, 5), (20, 10), (30, 30))  # runs before and after a step
NOISES: Mapping[str, Mapping[str, Any]] = {
    "every twentieth run an outlier": {},
    "every tenth run an outlier": {"outliers": 0.1},
    "heavy tails (Student's t, 4 degrees)": {"heavy": True},
    "neighbours alike (correlation 0.3)": {"alike": 0.3},
    "neighbours alike (correlation 0.6)": {"alike": 0.6},
}


def noise(
    rng: np.random.Generator, runs: int, spread: float, outliers: float = 0.05, heavy: bool = False, alike: float = 0.0
) -> np.ndarray:
    """Runs that differ by noise alone, around 1."""
    deviations = rng.standard_t(4, runs) / math.sqrt(2) if heavy else rng.standard_normal(runs)
    for at in range(1, runs):
        deviations[at] = alike * deviations[at - 1] + math.sqrt(1 - alike**2) * deviations[at]
    slower = np.where(rng.random(runs) < outliers, rng.uniform(1.05, 1.6, runs), 1.0)
    return np.exp(spread * deviations) * slower


def false_alarms(**kind: Any) -> Iterator[float]:
    """The share of series with a change, by number of runs and spread."""
    for runs in RUNS:
        for spread in SPREADS:
            rng = np.random.default_rng(runs)
            yield (
                sum(bool(level_changes(noise(rng, runs, spread, **kind).tolist(), False)) for _ in range(SERIES))
                / SERIES
            )


def found(before: int, after: int, step: float, spread: float) -> tuple[float, float]:
    """(the share of series in which the step is found, changes found elsewhere in a series)."""
    rng, hits, others = np.random.default_rng(before), 0, 0
    for _ in range(SERIES):
        series = noise(rng, before + after, spread)
        series[before:] *= 1 + step
        near = [abs(change.at - before) <= 1 for change in level_changes(series.tolist(), False)]
        hits, others = hits + any(near), others + near.count(False)
    return hits / SERIES, others / SERIES


def main() -> None:
    columns = [f"{runs} runs, {spread:.0%}" for runs in RUNS for spread in SPREADS]
    print(f"| false alarms, % of series | {' | '.join(columns)} |\n|---|{'---|' * len(columns)}")
    for name, kind in NOISES.items():
        print(f"| {name} | {' | '.join(f'{share:.1%}'.rstrip('%') for share in false_alarms(**kind))} |", flush=True)
    columns = [f"{step:.0%} in {spread:.0%}" for step in STEPS for spread in SPREADS]
    print(f"\n| found, and others, % | {' | '.join(columns)} |\n|---|{'---|' * len(columns)}")
    for before, after in SPLITS:
        cells = (found(before, after, step, spread) for step in STEPS for spread in SPREADS)
        print(f"| {before} runs, then {after} | {' | '.join(f'{a:.0%}, {b:.0%}' for a, b in cells)} |", flush=True)


if __name__ == "__main__":
    main()
