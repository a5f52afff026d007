"""Figures of a measurement by name: claims state bounds on them, and `history` follows them over runs.

A figure that is derived from the time has an interval where the time has one: the figures at both ends of the time's.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from stripectl.errors import BadInput
from stripectl.results.fit import Fit, memory_fit
from stripectl.results.measurement import Measurement
from stripectl.util.files import unknown_name
from stripectl.util.units import BYTES, PREFIXES, SECONDS, duration, nbytes, rate, times

NUMBER = re.compile(r"(\d{1,20}(?:\.\d{0,20})?(?:[eE][+-]?\d{1,3})?)([^\d.].*)?")
SHARE = {"": 1.0, "%": 0.01}
RATIO = {"": 1.0, "x": 1.0}
OF_TIME = dict(SECONDS) | {"min": 60.0}
OF_BYTES = dict(BYTES) | {"TiB": 2.0**40, "TB": 1e12, "GB": 1e9, "MB": 1e6, "kB": 1e3}

Interval = tuple[float, float]
ANSWERS: Interval = (0.0, 1.0)  # no and yes


def percent_text(share: float) -> str:
    return f"{share:.1%}"


@dataclass(frozen=True, kw_only=True)
class Metric:
    """`of` a measurement is the figure in SI units, or None. `units` are the units of a bound, with their sizes, and
    `source` says which plans have the figure. `better` is 1 where more is better, else -1; `more` and `less` name a
    change. A `timed` figure is derived from the time; a `counted` figure is equal whenever it is found again."""

    name: str
    of: Callable[[Measurement], float | None]
    shown: Callable[[float], str]
    units: Mapping[str, float]
    source: str
    better: int
    more: str = "higher"
    less: str = "lower"
    timed: bool = False
    counted: bool = False

    @property
    def is_a_question(self) -> bool:
        """Whether a claim names the figure without a value."""
        return not self.units

    def ci95(self, m: Measurement) -> Interval | None:
        """The interval that samples give the figure."""
        if not self.timed:
            return None
        if self.name == "speedup":
            return m.speedup and m.speedup.ci95
        ends = [self.of(replace(m, median_s=end)) for end in m.ci95_s or ()]
        known = [end for end in ends if end is not None]
        return (min(known), max(known)) if known else None

    def interval(self, m: Measurement) -> Interval | None:
        """The interval in which the figure lies: a point where it was not sampled, both answers where neither is sure,
        None where it is not known."""
        value = self.of(m)
        if value is None or (self.timed and m.method == "measured"):
            return None if value is None else self.ci95(m)
        return ANSWERS if self.is_a_question and value not in ANSWERS else (value, value)

    def is_exact(self, m: Measurement) -> bool:
        """Whether neither a clock nor a device contributes to the figure."""
        return self.counted or not is_timed_here(m)

    def over(self, m: Measurement) -> str:
        """The plan to which the figure is relative."""
        return f"over {m.speedup.over}" if m.speedup and self.name == "speedup" else ""

    def bound(self, text: str) -> float:
        """A value as it is written: `30 GiB`, `90%`, `1e-2`.

        Raises:
            BadInput: no number, a unit that the figure does not have, or none where it needs one.
        """
        match = NUMBER.fullmatch(text.strip())
        size = self.units.get((match[2] or "").strip()) if match else None
        if match is None or size is None:
            known = ", ".join(name or "none" for name in self.units)
            raise BadInput(f"{text!r} is not a value of {self.name}. Write a number and its unit: {known}.")
        value = float(match[1]) * size
        if not math.isfinite(value):
            raise BadInput(f"{text!r} is too large a value of {self.name}.")
        return value


def is_timed_here(m: Measurement) -> bool:
    """Whether the time of a measurement depends on the machine on which it was found."""
    return m.method == "measured" or (m.cost_source is not None and m.cost_source.source.is_timed_here)


def bytes_per_device(m: Measurement) -> float | None:
    return None if m.bytes is None or m.devices == 1 else float(sum(m.bytes.values()))


FITS = {Fit.EXCEEDS: 0.0, Fit.TOO_CLOSE: 0.5, Fit.FITS: 1.0}


def fits_memory(m: Measurement) -> float | None:
    """1 for plans that fit, 0 for plans that need more memory than a device has, 0.5 where it is too close to tell."""
    found = memory_fit(m)
    return None if found is None else FITS[found]


def rates(unit: str, bare: float) -> dict[str, float]:
    """Units of a rate; a number alone is in `bare`."""
    return {"": bare} | {prefix + unit: size for prefix, size in PREFIXES}


TIME = "Only a plan with a time has it."
METRICS = {
    metric.name: metric
    for metric in (
        Metric(
            name="time",
            of=lambda m: m.median_s,
            shown=duration,
            units=OF_TIME,
            source=TIME,
            better=-1,
            more="slower",
            less="faster",
            timed=True,
        ),
        Metric(
            name="tokens_per_s",
            of=lambda m: m.tokens_per_s,
            shown=lambda value: rate(value, "tokens/s"),
            units=rates("tokens/s", 1.0) | {"k": 1e3, "M": 1e6},
            source=TIME,
            better=1,
            more="faster",
            less="slower",
            timed=True,
        ),
        Metric(
            name="tflops_per_s_per_device",
            of=lambda m: m.flops_per_s_per_device,
            shown=lambda value: rate(value, "FLOP/s"),
            units=rates("FLOP/s", 1e12),
            source=TIME,
            better=1,
            more="faster",
            less="slower",
            timed=True,
        ),
        Metric(
            name="mfu",
            of=lambda m: m.mfu,
            shown=percent_text,
            units=SHARE,
            source="Only hardware with a published peak has it.",
            better=1,
            timed=True,
        ),
        Metric(
            name="speedup",
            of=lambda m: m.speedup and m.speedup.value,
            shown=times,
            units=RATIO,
            source="It is relative to the contiguous ring of the same run.",
            better=1,
            timed=True,
        ),
        Metric(
            name="overlap",
            of=lambda m: m.overlap and m.overlap.ratio,
            shown=percent_text,
            units=SHARE,
            source="It needs a profile (stripectl bench --profile) or a compiled schedule (--method compiled).",
            better=1,
            more="more",
            less="less",
        ),
        Metric(
            name="peak",
            of=lambda m: m.peak_bytes,
            shown=nbytes,
            units=OF_BYTES,
            source="The memory of a plan that was refused for another reason is not known. Try a plan that can run.",
            better=-1,
            more="more",
            less="less",
            counted=True,
        ),
        Metric(
            name="sent",
            of=bytes_per_device,
            shown=nbytes,
            units=OF_BYTES,
            source="Only plans on several devices have it.",
            better=-1,
            more="more",
            less="less",
            counted=True,
        ),
        Metric(
            name="max_rel_error",
            of=lambda m: m.check and m.check.error,
            shown=lambda value: f"{value:.2g}",
            units=SHARE,
            source="Only measured plans have it: --method measured.",
            better=-1,
            more="larger",
            less="smaller",
        ),
        Metric(
            name="tiles",
            of=lambda m: m.tiles.efficiency if m.tiles else None,
            shown=percent_text,
            units=SHARE,
            source="Only kernels that compute in tiles have it.",
            better=1,
            counted=True,
        ),
        Metric(
            name="fits",
            of=fits_memory,
            shown=lambda value: next(str(fit) for fit, known in FITS.items() if known == value),
            units={},
            source="The memory of a device comes from its machine's profile. Try --target v5e:4x4.",
            better=1,
            counted=True,
        ),
    )
}
ALIASES = {"speed-up": "speedup", "hidden": "overlap", "memory": "peak", "tiles efficiency": "tiles"}  # of the tables


def parse_metric(words: Sequence[str]) -> Metric:
    """A metric by its name, or by the title of its column.

    Raises:
        BadInput: no metric has this name.
    """
    name = " ".join(words).lower()
    if (known := ALIASES.get(name, name)) not in METRICS:
        raise unknown_name("metric", name, METRICS)
    return METRICS[known]
