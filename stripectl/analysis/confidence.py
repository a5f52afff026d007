"""The confidence in a recommendation: a level, a word and the reason.

Levels say how the time of the best plan is known, from published figures only to many samples on the devices
themselves. Whether two plans can be distinguished is part of the answer, not of the level.
"""

from stripectl.analysis.distortions import distortions
from stripectl.analysis.ranking import Ranking, speedup_error
from stripectl.results.cost_source import CostOrigin
from stripectl.results.findings import Distortion
from stripectl.results.measurement import Measurement

LEVELS = ("low", "fair", "good", "high")
WIDE_INTERVAL = 0.05  # half an interval over its median
MAX_GOOD_ERROR = 0.15  # of predictions


def confidence_level(ranking: Ranking, known_error: float | None) -> int:
    """From 1 to 4; `known_error` is the error of such predictions against published measurements, where it is known.
    Each distortion of the time of the best plan lowers the level by one."""
    return max(1, level_by_method(ranking, known_error) - len(distortions_of_time(ranking.best)))


def distortions_of_time(m: Measurement) -> list[Distortion]:
    return [each for each in distortions(m) if "time" in each.figures]


def level_by_method(ranking: Ranking, known_error: float | None) -> int:
    """The level by how the time of the best plan was obtained."""
    best = ranking.best
    if best.method == "measured":
        if not best.ci95_s or not best.median_s:
            return 2
        half = (best.ci95_s[1] - best.ci95_s[0]) / 2 / best.median_s
        return 4 if half <= WIDE_INTERVAL else 3
    errors = [error for error in (speedup_error(ranking.pairs), known_error) if error is not None]
    if best.cost_source and best.cost_source.source == CostOrigin.DATASHEET:
        return 1
    return 3 if errors and min(errors) <= MAX_GOOD_ERROR else 2
