"""Whether plans fit, at which lengths, and the memory that a device needs."""

import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from stripectl.core.lengths import format_length
from stripectl.reporters.html.bar_chart import Bars, bar
from stripectl.reporters.html.charts import (
    MAX_SERIES,
    Chart,
    Drawing,
    Rule,
    Section,
    chart_table,
    grouped_by,
    not_drawn,
    section,
)
from stripectl.reporters.html.line_chart import CurvePoint, Curves
from stripectl.reporters.html.stacked_bars import Segment, StackedBars
from stripectl.reporters.html.times import short_labels
from stripectl.reporters.html.vega_lite import tip
from stripectl.results.case import flags_text
from stripectl.results.fit import Fit, limit_sentences, memory_fit
from stripectl.results.labels import plan_label, workload_label
from stripectl.results.measurement import Measurement
from stripectl.util.files import utf8
from stripectl.util.units import BYTES, NOTHING, nbytes, unit_of

TITLE = "Does it fit, and at which length?"
INTRO = (
    "The memory that a device needs at once, compared with the memory that it has (the dashed line): the compiler's "
    "figure for a compiled plan, the program's for a measured plan, the sum of the live arrays for a simulated plan. "
    "✕ marks a plan that was refused because it does not fit."
)
ABSENT = "The memory of no plan in this run is known. Try: stripectl bench --target v5e:4x4."
PARTS_TITLE = "Which parts fill the memory in a training step?"
PARTS_COLUMNS = ("plan", "part", "a device needs", "share")
MAX_STACKS = 6
COLUMNS = ("plan", "tokens", "method", "a device needs", "of", "status")
MAX_BARS = 12


def of_run(shown: Sequence[Measurement]) -> Section:
    """One chart for each workload without its length: lines for several lengths, bars for one length."""
    groups: dict[Any, list[Measurement]] = {}
    for m in shown:
        if m.peak_bytes and (m.status == "ok" or m.status == "refused"):
            groups.setdefault((m.workload.without("seq_len"), m.target, m.devices == 1), []).append(m)
    charts = [_chart(members) for (_, _, alone), members in groups.items() if not alone or len(groups) == 1]
    stepped: dict[Any, list[Measurement]] = {}
    for m in shown:
        if m.memory:
            stepped.setdefault((m.workload, m.target), []).append(m)
    charts += [_parts(members) for members in stepped.values()]
    return section("memory", "Memory", TITLE, INTRO, grouped_by(charts), ABSENT)


def _chart(members: Sequence[Measurement]) -> Chart:
    lengths = sorted({m.workload.seq_len for m in members})
    largest = max(max(m.peak_bytes or 0, m.hbm_bytes or 0) for m in members)
    unit, size = unit_of(largest, BYTES)
    has = min((m.hbm_bytes for m in members if m.hbm_bytes), default=None)
    rules = [Rule(has / size, f"a device has {nbytes(has)}")] if has else []
    first, last = (format_length(each) for each in (lengths[0], lengths[-1]))
    dearest = max(members, key=lambda m: m.peak_bytes or 0)
    axis, draw = f"memory of a device ({unit})", _lines if len(lengths) > 1 else _bars
    drawing, drawn, left_out = draw(members, size, axis, rules)
    work = members[0].workload
    return Chart(
        TITLE,
        f"{work.passes} on {members[0].target}",
        [m.method for m in drawn],
        f"Memory that plans need on each device. The most: {dearest.plan} at "
        f"{format_length(dearest.workload.seq_len)} tokens, {nbytes(dearest.peak_bytes)}"
        + (f" of {nbytes(has)}." if has else "."),
        chart_table(COLUMNS, map(_cells, drawn), ("plan", "tokens", "method", "status")),
        drawing,
        " ".join(
            [f"A device has {nbytes(has)}."] * bool(has)
            + [f"{each[0].upper()}{each[1:]}." for each in limit_sentences(m for m in members if m.status == "ok")]
            + [f"{not_drawn(left_out).capitalize()}; see the table of measurements."] * bool(left_out)
        ),
        group=workload_label(work, f"{first} to {last}" if len(lengths) > 1 else None),
    )


def _cells(m: Measurement) -> tuple[str, ...]:
    has = nbytes(m.hbm_bytes) if m.hbm_bytes else NOTHING
    status = Fit.TOO_CLOSE if m.status == "ok" and memory_fit(m) == Fit.TOO_CLOSE else m.status
    return plan_label(m), format_length(m.workload.seq_len), m.method, nbytes(m.peak_bytes), has, status


def _parts(members: Sequence[Measurement]) -> Chart:
    """The parts of the memory of a training step, for the fastest plans, or, where none has a time, for the plans that
    need least."""
    order = sorted(members, key=lambda m: (m.median_s or math.inf, m.peak_bytes or 0))
    drawn = order[:MAX_STACKS]
    unit, size = unit_of(max(sum((m.memory or {}).values()) for m in drawn), BYTES)
    names, segments, rows = list[str](), list[Segment](), list[tuple[str, ...]]()
    for at, m in enumerate(drawn):
        memory, low = m.memory or {}, 0.0
        total = sum(memory.values())
        for part, needs in sorted(memory.items(), key=lambda each: -each[1]):
            names += [part] * (part not in names)
            name, said = utf8(plan_label(m)), tip(f"{part}: {nbytes(needs)}")
            segments.append(Segment(at, name, part, low / size, (low + needs) / size, said))
            rows.append((plan_label(m), part, nbytes(needs), f"{needs / total:.0%}"))
            low += needs
    has, first = min((m.hbm_bytes for m in drawn if m.hbm_bytes), default=None), drawn[0]
    rules = [Rule(has / size, f"a device has {nbytes(has)}")] if has else []
    return Chart(
        PARTS_TITLE,
        f"{first.workload.passes} on {first.target}",
        ["simulated"],
        f"Memory of a device by part, for {len(drawn)} plans. The first is {plan_label(first)}: "
        f"{nbytes(sum((first.memory or {}).values()))}.",
        chart_table(PARTS_COLUMNS, rows, ("plan", "part")),
        StackedBars(segments, names, f"memory of a device ({unit})", rules),
        "The parts are predicted, even for compiled plans, whose total is the compiler's figure.",
        group=workload_label(first.workload),
    )


def _name(m: Measurement) -> str:
    """The plan without its tiles, whose default differs between lengths."""
    bare = replace(m.plan, tile=None, backward=None)
    return utf8(f"{bare}{flags_text(m.flags)}" + " (one device)" * (m.devices == 1))


Drawn = tuple[Drawing, Sequence[Measurement], int]  # a drawing, its measurements, and the number that is not drawn


def _lines(members: Sequence[Measurement], size: float, axis: str, rules: Sequence[Rule]) -> Drawn:
    """The plans that reach the longest lengths, and among those the plans that need least."""
    furthest: dict[str, tuple[int, float]] = {}
    for m in members:
        if m.status == "ok":
            own = (-m.workload.seq_len, m.peak_bytes or 0.0)
            furthest[_name(m)] = min(own, furthest.get(_name(m), (0, 0.0)))
    every = list(dict.fromkeys(map(_name, members)))
    best = sorted(every, key=lambda name: furthest.get(name, (0, 0.0)))[:MAX_SERIES]
    names = [name for name in every if name in best]
    drawn = _least_over_tiles(m for m in members if _name(m) in names)

    def points(ran: bool) -> list[CurvePoint]:
        return [_point(m, size) for m in drawn if (m.status == "ok") == ran]

    curves = Curves(names, points(True), axis, crosses=points(False), rules=rules, logarithmic=True)
    return curves, drawn, len(every) - len(names)


def _point(m: Measurement, size: float) -> CurvePoint:
    said = f"{plan_label(m)} at {format_length(m.workload.seq_len)} tokens: {nbytes(m.peak_bytes)}, {m.method}"
    return CurvePoint(m.workload.seq_len, (m.peak_bytes or 0) / size, _name(m), m.method, tip(said))


def _least_over_tiles(members: Iterable[Measurement]) -> list[Measurement]:
    """Of measurements that differ only in tiles, the measurement that needs least memory."""
    least: dict[Hashable, Measurement] = {}
    for m in members:
        key = _name(m), m.workload.seq_len, m.method, m.status
        least[key] = min(least.get(key, m), m, key=lambda each: each.peak_bytes or 0)
    return list(least.values())


def _bars(members: Sequence[Measurement], size: float, axis: str, rules: Sequence[Rule]) -> Drawn:
    drawn = sorted(members, key=lambda m: m.peak_bytes or 0)[:MAX_BARS]
    names, least = short_labels(drawn), drawn[0].peak_bytes
    bars = [
        bar(
            at,
            names[m.key],
            m,
            (m.peak_bytes or 0) / size,
            nbytes(m.peak_bytes) + " ✕" * (m.status != "ok"),
            best=m.status == "ok" and m.peak_bytes == least,
        )
        for at, m in enumerate(drawn)
    ]
    return Bars(bars, axis, rules), drawn, len(members) - len(drawn)
