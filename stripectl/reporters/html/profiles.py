"""The profiles of a report, as plain data: the overlap of each traced plan, a step, its hops and why they are exposed.

A run.json may come from anybody and be of any size, so all lists are limited and say what they omit.
"""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import TypedDict

import numpy as np

from stripectl.core.reason import Reason, ReasonKind
from stripectl.profiling.timeline import BINS, KINDS, by_kind, merge_moments, moments
from stripectl.reporters import profile_text
from stripectl.reporters.html.charts import MAX_TABLE_ROWS, Chart, ChartTable, MoreTable, chart_table
from stripectl.reporters.html.timeline import HopBar, HopChart, Label, Lane, Part, StepChart
from stripectl.results.labels import plan_label, workload_label
from stripectl.results.measurement import Measurement
from stripectl.results.measurement_set import MeasurementSet
from stripectl.results.profile import HopFigures, Profile
from stripectl.util.files import utf8
from stripectl.util.units import SECONDS, duration, plural, unit_of

TITLE = "How much of the communication hides?"
STEP_TITLE, HOPS_TITLE = "Where does the time of {} go?", "Which hops are exposed?"
ABSENT = "No profile was captured. stripectl bench --profile captures one; stripectl trace --read PATH reads any other."
# Columns without numbers.
TEXT_COLUMNS = (*profile_text.TEXT_COLUMNS, "plan", "workload", "what the profile says", "kind")
MAX_PROFILES = 6  # shown in full; the others only with their overlap
MAX_TWICE = 1000  # parts of a step that are drawn for wide and for narrow screens; more parts are drawn once for both
MAX_LANES = 16  # devices that are drawn; of more, every k-th
MIN_LABELLED_SHARE = 0.01  # of a step: an exposed part that gets a label
MAX_SEGMENTS = 100  # of a step that is printed as a table
NO_PROFILE = Profile(reason=Reason(ReasonKind.NO_PROFILE, "no profile was captured"))


class ProfileContent(TypedDict):
    """A profile on the page."""

    plan: str
    passes: str
    what: str
    others: str | None
    headline: str
    timeline: Chart | None
    hops: Chart | None
    causes: list[profile_text.CauseLine]
    devices: ChartTable
    axes: ChartTable
    operations: ChartTable
    folder: str | None
    open: str


class ProfileSections(TypedDict):
    """The profiles of a run: whole, in a line each, and how many are not drawn."""

    profiles: list[ProfileContent]
    others: ChartTable
    not_drawn: int


def profile_sections(shown: MeasurementSet) -> ProfileSections:
    """The profiles of a run in full, with profiles that have devices first."""
    traced = [m for m in shown if m.profile]
    known = [m for m in traced if m.profile and m.profile.devices]
    whole = known[:MAX_PROFILES]
    others = [m for m in traced if all(m is not each for each in whole)]
    names = ("plan", "pass", "workload", "what the profile says")
    rows = [
        (profiled_plan(m), m.workload.passes, workload_label(m.workload), profile_headline(m, shown)) for m in others
    ]
    return {
        "profiles": [profile_content(m, shown) for m in whole],
        "others": chart_table(names, rows, TEXT_COLUMNS),
        "not_drawn": len(known) - len(whole),
    }


def profiled_plan(m: Measurement) -> str:
    return plan_label(m) if m.status == "ok" else str(m.plan)


def profile_headline(m: Measurement, shown: MeasurementSet) -> str:
    return profile_text.profile_summary(m.profile or NO_PROFILE, shown.predicted_overlap(m))


def profile_content(m: Measurement, shown: MeasurementSet) -> ProfileContent:
    """Everything that is shown of a profile."""
    profile = m.profile or NO_PROFILE
    devices = profile.devices
    at = thinned(len(devices), MAX_TABLE_ROWS, profile.busiest)
    what = utf8(f"{profiled_plan(m)} {m.workload.passes}")
    return {
        "plan": profiled_plan(m),
        "passes": m.workload.passes,
        "what": f"{workload_label(m.workload)} on {m.target}; {profile_text.profile_source(profile, m.median_s)}",
        "others": profile_text.other_programs_text(profile),
        "headline": profile_headline(m, shown),
        "timeline": profile_timeline(profile, what),
        "hops": profile_hops(profile, what),
        "causes": profile_text.cause_lines(profile)[:MAX_TABLE_ROWS],
        "devices": chart_table(
            profile_text.device_columns(profile),
            [profile_text.device_cells(devices[each]) for each in at],
            TEXT_COLUMNS,
            len(devices),
        ),
        "axes": chart_table(profile_text.AXES, map(profile_text.axis_cells, profile.axes), TEXT_COLUMNS),
        "operations": chart_table(
            profile_text.OPERATIONS, map(profile_text.operation_cells, profile.operations), TEXT_COLUMNS
        ),
        "folder": profile.profile,
        "open": profile_text.opening(shlex.quote(profile.profile or "")),
    }


def thinned(count: int, most: int, through: int) -> list[int]:
    """At most `most` places, evenly spaced, one of which is `through`."""
    step = -(-count // most)
    return list(range(through % step, count, step)) if count else []


def profile_timeline(profile: Profile, plan: str) -> Chart | None:
    """A step: one lane per device with its parts, and the seconds of each kind."""
    kept = profile.timeline
    if kept is None or not kept.devices or not kept.end_s:
        return None
    end_s, count = kept.end_s, min(len(profile.devices), len(kept.devices))
    at = thinned(count, MAX_LANES, min(profile.busiest, count - 1))
    unit, size = unit_of(end_s, SECONDS)
    shown = [(utf8(profile.devices[each].name), by_kind(kept.devices[each])) for each in at]
    parts = [(name, merge_moments(moments(found, end_s, BINS), end_s)) for name, found in shown]
    lanes = [_lane(name, found, profile.hops, end_s, size) for name, found in parts]
    one = profile_text.part_name(profile, "one")
    some = f"{len(lanes)} of {count:,} devices. " if len(lanes) < count else ""
    return Chart(
        STEP_TITLE.format(profile_text.part_name(profile)),
        f"{one}, {plan}",
        ["measured"],
        f"{one.capitalize()} of {plural(count, 'device')}, {duration(end_s)}. "
        f"{profile_text.profile_summary(profile, None)}.",
        chart_table(
            ("device", "compute alone", *KINDS[1:]),
            [(name, *map(duration, _seconds(found, end_s))) for name, found in shown],
            ("device",),
        ),
        StepChart(lanes, end_s / size, unit),
        f"{some}Compute above, transfers below; empty is idle.",
        _parts_table(parts),
        one_size=sum(len(lane.parts) for lane in lanes) > MAX_TWICE,
    )


def _seconds(parts: Mapping[str, np.ndarray], end_s: float) -> list[float]:
    """The seconds of each kind until `end_s`; the last kind is idle."""
    lengths = [sum(min(b, end_s) - min(a, end_s) for a, b in parts[kind].tolist()) for kind in KINDS[:-1]]
    return [*lengths, max(0.0, end_s - sum(lengths))]


Moments = Sequence[tuple[str, float, float]]  # parts of a step as (kind, start, end), in seconds


def _parts_table(parts: Iterable[tuple[str, Moments]]) -> list[MoreTable]:
    """The parts of all devices as a table, where it is short."""
    rows = [(name, kind, duration(a), duration(b)) for name, found in parts for kind, a, b in found]
    table = chart_table(("device", "kind", "from", "to"), rows, ("device", "kind"), most=MAX_SEGMENTS)
    return [MoreTable(title="Its parts", table=table, open=False)] * (len(rows) <= MAX_SEGMENTS)


def _lane(name: str, parts: Moments, hops: Sequence[HopFigures], end_s: float, size: float) -> Lane:
    drawn = [Part(kind, a / size, b / size) for kind, a, b in parts]
    return Lane(name, drawn, exposed_label(parts, hops, end_s, size))


def exposed_label(parts: Moments, hops: Sequence[HopFigures], end_s: float, size: float) -> Label | None:
    """The longest exposed part of a device's step in words, with the hop that began last before its end; None where no
    part is long enough to see."""
    start, end = max(
        ((a, b) for kind, a, b in parts if kind == "exposed"), key=lambda ab: ab[1] - ab[0], default=(0, 0)
    )
    if end - start < MIN_LABELLED_SHARE * end_s:
        return None
    begun = [hop for hop in hops if (hop.start_s or 0.0) < end]
    name = f"hop {begun[-1].hop}" if begun else "a transfer"
    return Label(start / size, end / size, utf8(f"{name}: {duration(end - start)} exposed"))


def profile_hops(profile: Profile, plan: str) -> Chart | None:
    """One bar per hop, on the device with its largest exposed time: hidden, exposed, and waiting for slower devices."""
    found = profile.hops
    if len(found) < 2:  # the timeline of the step shows a single hop
        return None
    shown, figures = found[:MAX_TABLE_ROWS], list[tuple[float, ...]]()
    for hop in shown:
        hidden_s, exposed_s, skew_s = (each[hop.worst] for each in (hop.hidden_s, hop.exposed_s, hop.skew_s))
        figures.append((hidden_s, max(0.0, exposed_s - skew_s), min(skew_s, exposed_s)))
    unit, size = unit_of(max(map(sum, figures)), SECONDS)
    bars = [
        HopBar(utf8(str(hop.hop)), kind, sum(parts[:at]) / size, sum(parts[: at + 1]) / size)
        for hop, parts in zip(shown, figures, strict=True)
        for at, kind in enumerate(("hidden", "exposed", "skew"))
        if parts[at]
    ]
    total = len(found) + int(profile.hops_left_out or 0)
    return Chart(
        HOPS_TITLE,
        f"hops, {plan}",
        ["measured"],
        f"Hidden and exposed time of {len(shown)} hops. The longest: {duration(max(map(sum, figures)))}.",
        chart_table(
            profile_text.HOPS, [profile_text.hop_cells(hop, profile.devices) for hop in shown], TEXT_COLUMNS, total
        ),
        HopChart([utf8(str(hop.hop)) for hop in shown], bars, unit),
        "Each hop is shown on the device with its largest exposed time.",
    )
