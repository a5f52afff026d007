"""What of a measurement can be followed over runs."""

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stripectl.results.measurement import SEARCH_PROBES, Measurement
from stripectl.results.schema import is_number, is_numbers
from stripectl.util.units import duration, nbytes, rate, times

TIMED = ("measured_tile", *SEARCH_PROBES)  # sources of simulated times that stand on what was timed on a machine

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
    return m.method == "measured" or (m.cost_source or {}).get("source") in TIMED


def _rate(of: Callable[[Measurement], float | None]) -> Callable[[Measurement], Interval]:
    """The interval of what falls as the time rises."""

    def found(m: Measurement) -> Interval:
        value = of(m)
        if value is None or not m.median_s or not m.ci95_s or not m.ci95_s[0]:
            return None
        return tuple(value * m.median_s / end for end in reversed(m.ci95_s))

    return found


def _number(part: Mapping[str, Any] | None, name: str) -> float | None:
    """A number of what a measurement holds of anybody's making."""
    value = (part or {}).get(name)
    return value if is_number(value) else None


def _sent(m: Measurement) -> float | None:
    return None if m.bytes is None else sum(m.bytes.values())


def _speedup_interval(m: Measurement) -> Interval:
    ends = (m.speedup or {}).get("ci95")
    return ends if ends and is_numbers(ends) and len(ends) == 2 else None


def _metrics() -> list[HistoryMetric]:
    tokens, flops, mfu = (operator.attrgetter(name) for name in ("tokens_per_s", "flops_per_s_per_device", "mfu"))
    return [
        HistoryMetric("time", lambda m: m.median_s, duration, "slower", "faster", -1, lambda m: m.ci95_s),
        HistoryMetric("tokens", tokens, lambda x: rate(x, "tokens/s"), "faster", "slower", 1, _rate(tokens)),
        HistoryMetric("tflops", flops, lambda x: rate(x, "FLOP/s"), "faster", "slower", 1, _rate(flops)),
        HistoryMetric("mfu", mfu, lambda x: f"{x:.1%}", "higher", "lower", 1, _rate(mfu)),
        HistoryMetric(
            "speedup",
            lambda m: _number(m.speedup, "value"),
            times,
            "higher",
            "lower",
            1,
            _speedup_interval,
            over=lambda m: f"over {(m.speedup or {}).get('over')}",
        ),
        HistoryMetric("overlap", lambda m: _number(m.overlap, "ratio"), lambda x: f"{x:.1%}", "more", "less", 1),
        HistoryMetric("memory", lambda m: m.peak_bytes, nbytes, "more", "less", -1, counted=True),
        HistoryMetric("sent", _sent, nbytes, "more", "less", -1, counted=True),
        HistoryMetric(
            "error", lambda m: _number(m.check, "max_rel_error"), lambda x: f"{x:.1e}", "larger", "smaller", -1
        ),
    ]


METRICS = {each.name: each for each in _metrics()}
