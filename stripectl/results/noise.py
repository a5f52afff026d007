"""Disturbances of a measurement: other programs on its cores, a clock that slows down, a compilation during a sample,
samples that drift.

With every sample a worker times a yardstick, a fixed matmul. Where the yardstick takes longer the machine was slower,
whatever the reason: a throttled clock, a neighbour's caches, a hypervisor that lends its cores to others.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from stripectl.results.findings import Noise
from stripectl.results.measurement import Measurement
from stripectl.statistics.drift import drift

UNSTEADY_SPREAD = 0.1  # relative spread of the yardstick above which the machine's speed changed
BUSY_CORE_SHARE = 0.05  # share of the cores that other programs may take
MAX_DRIFT = 0.05  # change from the first sample to the last, of the median
MAX_NAMED_PLANS = 2  # plans named per run
MAX_RETAKES = 3  # times that a sample with a compilation in it is repeated


@dataclass(frozen=True, kw_only=True)
class SampleAnswer:
    """A sample in one process: its seconds; the seconds of the yardstick, of all its cores (elapsed) and of other
    programs on them; the number of times that a clock was throttled and of compilations during it."""

    seconds: float
    yardstick_s: float
    others_s: float
    elapsed_s: float
    throttled: int
    compiled: int


@dataclass
class Disturbances:
    """Observations during the samples of a measurement."""

    yardstick_s: list[float] = field(default_factory=list[float])
    elapsed_s: float = 0.0
    others_s: float = 0.0
    throttled: int = 0
    compiled: int = 0

    @classmethod
    def before(cls, m: Measurement) -> "Disturbances":
        """The observations of the samples that a measurement already has."""
        seen, elapsed_s = m.noise or Noise(), sum(m.samples_s) * m.devices
        counts = int(seen.throttled), int(seen.compiled)
        return cls(list(seen.yardstick_s), elapsed_s, elapsed_s * seen.others, *counts)

    def seconds(self, answers: Sequence[SampleAnswer]) -> float | None:
        """The seconds of a sample, by its slowest process; None where a process compiled during it."""
        if any(each.compiled for each in answers):
            self.compiled += 1
            return None
        self.yardstick_s.append(max(each.yardstick_s for each in answers))
        self.elapsed_s += sum(each.elapsed_s for each in answers)
        self.others_s += sum(each.others_s for each in answers)
        self.throttled += sum(each.throttled for each in answers)
        return max(each.seconds for each in answers)

    @property
    def noise(self) -> Noise:
        """The observations as a part of the measurement."""
        return Noise(
            yardstick_s=tuple(self.yardstick_s),
            others=max(0.0, self.others_s / self.elapsed_s) if self.elapsed_s else 0.0,
            throttled=self.throttled,
            compiled=self.compiled,
        )


def disturbances(m: Measurement) -> list[str]:
    """The disturbances of a measurement, each as a phrase."""
    seen, found = m.noise or Noise(), list[str]()
    if (spread := unsteadiness(seen.yardstick_s)) > UNSTEADY_SPREAD:
        found.append(f"the machine's own speed varied by {spread:.0%}")
    if (share := seen.others) > BUSY_CORE_SHARE:
        found.append(f"other programs took {share:.0%} of its cores")
    if count := seen.throttled:
        found.append(f"the clock was throttled {count:g} times")
    if count := seen.compiled:
        found.append(f"{count:g} samples contained a compilation and were repeated")
    if abs(change := drift(m.samples_s)) > MAX_DRIFT:
        found.append(f"samples drift by {change:+.0%} from the first to the last")
    return found


def noise_warnings(measurements: Iterable[Measurement]) -> list[str]:
    """At most one line about disturbances in a run: the number of plans, and the first few of them."""
    sampled = [m for m in measurements if m.samples_s]
    found = [(m, said) for m in sampled if (said := disturbances(m))]
    if not found:
        return []
    named = [f"{m.plan} {m.workload.passes}: {', '.join(said)}" for m, said in found[:MAX_NAMED_PLANS]]
    more = f"; and {len(found) - MAX_NAMED_PLANS} more" if len(found) > MAX_NAMED_PLANS else ""
    return [f"{len(found)} of {len(sampled)} plans were disturbed while they ran. {'; '.join(named)}{more}"]


def unsteadiness(yardstick_s: Sequence[float]) -> float:
    """The width of the middle 80 % of the yardstick's times, divided by their median."""
    if len(yardstick_s) < 3:
        return 0.0
    import numpy as np

    low, middle, high = np.quantile(yardstick_s, (0.1, 0.5, 0.9))
    return float((high - low) / middle)
