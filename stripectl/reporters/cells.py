"""The cells of a table of measurements, as texts with their values; every reporter shows the same."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from stripectl.analysis.distortions import across_classes, mark
from stripectl.results.fit import Fit, memory_fit
from stripectl.results.labels import METHOD_WORDS, plan_label
from stripectl.results.measurement import Measurement, attention_bound
from stripectl.results.measurement_set import MeasurementSet
from stripectl.statistics.verdict import Verdict
from stripectl.util.units import NOTHING, duration, nbytes, rate, times, with_interval

MARKS = {"measured": "●", "compiled": "■", "simulated": "◇"}  # next to a number where there is no room for the word


class Cell(NamedTuple):
    """The text of a cell, and the number that it is sorted by."""

    text: str
    value: float | None = None


BLANK = Cell(NOTHING)


def speedup_cell(m: Measurement) -> str:
    """The value, its interval and, where the interval contains 1, the word for it."""
    if not m.speedup:
        return "base" if m.status == "ok" and m.median_s and m.devices > 1 else NOTHING
    text = f"{times(m.speedup.value)}{mark(m, 'speedup')}"
    text += f" {across}" if (across := across_classes(m.plan, m.speedup.over)) else ""
    if m.speedup.ci95:
        low, high = m.speedup.ci95
        text += f" [{low:.2f}, {high:.2f}]"
        if m.speedup.verdict == Verdict.INCONCLUSIVE:
            text += " ambiguous"
    return text


def spread_cell(m: Measurement) -> str:
    return with_interval(m.median_s, m.ci95_s) + (mark(m, "time") if m.median_s else "")


def memory_cell(m: Measurement) -> str:
    """The memory that a device needs, of the memory that it has, and whether this is too close to tell."""
    host = f" and {nbytes(m.host_bytes)} of the host" if m.host_bytes else ""
    if not m.peak_bytes or not m.hbm_bytes:
        return nbytes(m.peak_bytes) + host
    doubt = f", {Fit.TOO_CLOSE}" * (memory_fit(m) == Fit.TOO_CLOSE)
    return f"{m.peak_bytes / m.hbm_bytes:.0%} of {nbytes(m.hbm_bytes)}{doubt}{host}{mark(m, 'memory')}"


def sent_cell(m: Measurement) -> str:
    """The bytes that a device sends."""
    return nbytes(sum((m.bytes or {}).values())) + mark(m, "bytes")


def measurement_cells(m: Measurement, run: MeasurementSet) -> dict[str, Cell]:
    """Return the cells of a measurement of a run by their columns; columns without a value are missing."""
    known = [("plan", plan_label(m), None), ("memory", memory_cell(m), m.peak_bytes)]
    if m.status != "ok":
        return _cells([*known, ("method", m.status, None)])
    overlap, bound, layer = m.overlap and m.overlap.ratio, attention_bound(m), m.bound and m.bound.layer
    known += [
        ("method", METHOD_WORDS.get(m.method, m.method), None),
        ("time", spread_cell(m), m.median_s),
        ("samples", str(len(m.samples_s)) if m.samples_s else NOTHING, len(m.samples_s)),
        ("speed-up", speedup_cell(m), m.speedup and m.speedup.value),
        ("hidden", NOTHING if overlap is None else f"{overlap:.0%}", overlap),
        ("per device", rate(m.flops_per_s_per_device, "FLOP/s"), m.flops_per_s_per_device),
        ("MFU", NOTHING if m.mfu is None else f"{m.mfu:.0%}", m.mfu),
    ]
    if m.tiles:
        padding = f" (+{m.tiles.padding} rows)" if m.tiles.padding else ""
        known += [
            ("tiles", f"{m.tiles.efficiency:.0%}{padding}", m.tiles.efficiency),
            ("tiles computed", f"{m.tiles.computed:,}", m.tiles.computed),
            ("useful", f"{m.tiles.efficiency:.1%}", m.tiles.efficiency),
        ]
    if m.devices > 1:
        alone = run.over_one_device(m)
        known += [
            ("bound", times(bound), bound),
            ("layer bound", times(layer), layer),
            ("vs one", times(alone), alone),
            ("sent", sent_cell(m), sum((m.bytes or {}).values())),
        ]
    if (error := run.simulation_error(m)) is not None and (twin := run.simulation_of(m)):
        known += [
            ("simulation", f"{duration(twin.median_s)} {error:+.0%}", twin.median_s),
            ("simulation is off by", f"{error:+.0%}", error),
        ]
    return _cells(known)


def _cells(known: Iterable[tuple[str, str, float | None]]) -> dict[str, Cell]:
    return {name: Cell(text, value) for name, text, value in known if text != NOTHING}


def texts_of(cells: Mapping[str, Cell], columns: Sequence[str]) -> list[str]:
    """Return the text of a row in each of these columns."""
    return [cells.get(name, BLANK).text for name in columns]
