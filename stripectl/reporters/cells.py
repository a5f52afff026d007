"""The cells of a table of measurements, as texts; every reporter shows the same."""

from stripectl.analysis.distortions import across_classes, mark
from stripectl.results.fit import Fit, memory_fit
from stripectl.results.labels import METHOD_WORDS, plan_label
from stripectl.results.measurement import Measurement, attention_bound
from stripectl.results.measurement_set import MeasurementSet
from stripectl.statistics.verdict import Verdict
from stripectl.util.units import NOTHING, duration, nbytes, rate, times, with_interval

COLUMNS = ("plan", "method", "time", "speed-up", "bound", "vs one", "tiles", "sent", "per device", "MFU")
PAIR_COLUMNS = ("simulation",)
COMPILED_COLUMNS = ("memory", "hidden")
MARKS = {"measured": "●", "compiled": "■", "simulated": "◇"}  # next to a number where there is no room for the word


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
    if not m.peak_bytes or not m.hbm_bytes:
        return nbytes(m.peak_bytes)
    doubt = f", {Fit.TOO_CLOSE}" * (memory_fit(m) == Fit.TOO_CLOSE)
    return f"{m.peak_bytes / m.hbm_bytes:.0%} of {nbytes(m.hbm_bytes)}{doubt}{mark(m, 'memory')}"


def sent_cell(m: Measurement) -> str:
    """The bytes that a device sends."""
    return nbytes(sum((m.bytes or {}).values())) + mark(m, "bytes")


def hidden_cell(m: Measurement) -> str:
    """The hidden share of communication."""
    return f"{m.overlap.ratio:.0%}" if m.overlap and m.overlap.ratio is not None else NOTHING


def tiles_cell(m: Measurement) -> str:
    """The useful share of scores in tiles, and the rows that the kernel pads."""
    if not m.tiles:
        return NOTHING
    return f"{m.tiles.efficiency:.0%}" + (f" (+{m.tiles.padding} rows)" if m.tiles.padding else "")


def measurement_row(m: Measurement, run: MeasurementSet) -> dict[str, str]:
    """The cells of a measurement, by column."""
    cells = dict.fromkeys((*COLUMNS, *PAIR_COLUMNS, *COMPILED_COLUMNS), NOTHING)
    cells |= {"plan": plan_label(m), "memory": memory_cell(m)}
    if m.status != "ok":
        return cells | {"method": m.status}
    other, error = run.simulation_of(m), run.simulation_error(m)
    if other is not None and error is not None:
        cells["simulation"] = f"{duration(other.median_s)} {error:+.0%}"
    if m.devices > 1:
        cells["sent"] = sent_cell(m)
    return cells | {
        "method": METHOD_WORDS.get(m.method, m.method),
        "hidden": hidden_cell(m),
        "time": spread_cell(m),
        "speed-up": speedup_cell(m),
        "bound": times(attention_bound(m)),
        "vs one": times(run.over_one_device(m)),
        "tiles": tiles_cell(m),
        "per device": rate(m.flops_per_s_per_device, "FLOP/s"),
        "MFU": NOTHING if m.mfu is None else f"{m.mfu:.0%}",
    }
