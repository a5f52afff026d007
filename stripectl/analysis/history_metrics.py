"""What of a measurement can be followed over runs."""

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from stripectl.results.measurement import Measurement
from stripectl.util.units import duration, nbytes, rate, times

Interval = Sequence[float] | None


@dataclass(frozen=True)
class HistoryMetric:
    """A number of a measurement: how it is read, written, and called where it is more or less than it was; `better`
    is 1 where more of it is better, else -1. What is `counted` is the same whenever it is found again, and what a value
    is `over` belongs to it."""

    name: str
    of: Callable[[Measurement], float | None]
    written: Callable[[float], str]
    more: str
    less: str
    better: int
    interval: Callable[[Measurement], Interval] = lambda m: None
    counted: bool = False
    over: Callable[[Measurement], str] = lambda m: ""

    def exact(self, m: Measurement) -> bool:
        """Whether no clock and no device has a part in it."""
        return self.counted or not on_a_machine(m)


def on_a_machine(m: Measurement) -> bool:
    """Whether its time is that of the machine it was found on."""
    return m.method == "measured" or (m.cost_source is not None and m.cost_source.source.is_timed_here)


def _rate(of: Callable[[Measurement], float | None]) -> Callable[[Measurement], Interval]:
    """The interval of what falls as the time rises."""

    def found(m: Measurement) -> Interval:
        value = of(m)
        if value is None or not m.median_s or not m.ci95_s or not m.ci95_s[0]:
            return None
        return tuple(value * m.median_s / end for end in reversed(m.ci95_s))

    return found


def _sent(m: Measurement) -> float | None:
    return None if m.bytes is None else sum(m.bytes.values())


def _finite_error(m: Measurement) -> float | None:
    return m.check.error if m.check and math.isfinite(m.check.error) else None


def _speedup_interval(m: Measurement) -> Interval:
    return m.speedup and m.speedup.ci95


def _metrics() -> list[HistoryMetric]:
    tokens, flops, mfu = (operator.attrgetter(name) for name in ("tokens_per_s", "flops_per_s_per_device", "mfu"))
    return [
        HistoryMetric("time", lambda m: m.median_s, duration, "slower", "faster", -1, lambda m: m.ci95_s),
        HistoryMetric("tokens", tokens, lambda x: rate(x, "tokens/s"), "faster", "slower", 1, _rate(tokens)),
        HistoryMetric("tflops", flops, lambda x: rate(x, "FLOP/s"), "faster", "slower", 1, _rate(flops)),
        HistoryMetric("mfu", mfu, lambda x: f"{x:.1%}", "higher", "lower", 1, _rate(mfu)),
        HistoryMetric(
            "speedup",
            lambda m: m.speedup and m.speedup.value,
            times,
            "higher",
            "lower",
            1,
            _speedup_interval,
            over=lambda m: f"over {m.speedup and m.speedup.over}",
        ),
        HistoryMetric("overlap", lambda m: m.overlap and m.overlap.ratio, lambda x: f"{x:.1%}", "more", "less", 1),
        HistoryMetric("memory", lambda m: m.peak_bytes, nbytes, "more", "less", -1, counted=True),
        HistoryMetric("sent", _sent, nbytes, "more", "less", -1, counted=True),
        HistoryMetric("error", _finite_error, lambda x: f"{x:.1e}", "larger", "smaller", -1),
    ]


METRICS = {each.name: each for each in _metrics()}
