"""What holds of every profile, over random ones: moments in integer microseconds, so that sums are exact."""

from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stripectl.core.intervals import length, union
from stripectl.hlo.module import parse_module
from stripectl.profiling.device_steps import DeviceSteps
from stripectl.profiling.diagnosis import ProfiledPlan
from stripectl.profiling.events import Columns, Device, Execution
from stripectl.profiling.overlap import analyse
from stripectl.profiling.program import ProfiledProgram, Site
from stripectl.profiling.steps import DeviceStep, HopKey, device_step
from stripectl.profiling.timeline import KINDS
from stripectl.results.profile import Profile
from tests.support.golden import PROFILES

PROGRAM = ProfiledProgram(parse_module((PROFILES / "ring.hlo.txt").read_text()), {"ring": 2})
END = 60
MODULE = "jit_step(1)"
Event = tuple[str, int, int, int]  # name, line, start, end

SPANS = st.tuples(st.integers(0, 50), st.integers(1, 10)).map(lambda span: (span[0], span[0] + span[1]))
NAMES = ("fusion.1", "fusion.2", "copy.1", "all-reduce.1", "collective-permute-start.1", "collective-permute-done.1")
EVENTS = st.lists(
    st.tuples(st.sampled_from(NAMES), st.integers(0, 2), SPANS).map(lambda event: (*event[:2], *event[2])), max_size=10
)


def device(events: Iterable[Event], name: str = "TPU 0", end: int = END) -> Device:
    columns = Columns()
    for instruction, line, start, stop in events:
        columns.add(instruction, line, SimpleNamespace(start_ns=start * 1e3, duration_ns=(stop - start) * 1e3))
    return Device(name, "tpu", columns.done(), Columns().done(), [Execution(MODULE, 0, 0.0, end * 1e-6)])


def step(events: Iterable[Event]) -> DeviceStep:
    made = device(events)
    return device_step(made, made.executions[0], PROGRAM, 0.0)


def whole_us(intervals: np.ndarray) -> list[list[int]]:
    return np.rint(intervals * 1e6).astype(int).tolist()


def told(made: DeviceStep) -> Any:
    """A step, rounded to what it was drawn in."""
    assert made.stall is not None
    hops = {key: whole_us(windows) for key, windows in made.hops.items()}
    return whole_us(made.compute), hops, made.sent_bytes, whole_us(made.stall), round(made.end_s * 1e6)


def covers(events: Iterable[Event], *names: str) -> set[int]:
    return {moment for name, _, start, end in events if name in names for moment in range(start, end)}


@given(EVENTS)
def test_a_step_is_what_counting_microseconds_gives(events: list[Event]) -> None:
    """On each line, compute is where something computes and nothing communicates; a blocking collective is a window,
    and the k-th done ends the k-th start."""
    found = DeviceSteps.of([step(events)]).figures(0)
    busy, waiting = set[int](), covers(events, "all-reduce.1", "collective-permute-done.1")
    for line in range(3):
        here = [event for event in events if event[1] == line]
        busy |= covers(here, *NAMES[:3]) - covers(here, *NAMES[3:])
    moving = covers(events, "all-reduce.1")
    opened: list[int] = []
    for name, _, start, end in sorted(events, key=lambda event: (event[2], -event[3])):
        if name == "collective-permute-start.1":
            opened.append(start)
        elif name == "collective-permute-done.1" and opened:
            moving |= set(range(opened.pop(0), end))
    expected = {
        **{"step_s": END, "compute_s": len(busy), "hidden_s": len(busy & moving), "exposed_s": len(moving - busy)},
        **{"skew_s": 0, "idle_s": END - len(busy | moving), "stall_s": len(waiting - busy)},
    }
    assert {name: value * 1e6 for name, value in found.items()} == pytest.approx(expected, abs=1e-6)


@given(EVENTS, st.lists(st.tuples(st.integers(0, 2), SPANS), max_size=4))
def test_containers_change_nothing(events: list[Event], around: list[tuple[int, tuple[int, int]]]) -> None:
    """Loops enclose what they run, and compute nothing themselves."""
    loops = [("while.1", line, *span) for line, span in around]
    assert told(step(loops + events)) == told(step(events))


@given(EVENTS, st.integers(0, END))
def test_cutting_compute_changes_nothing(events: list[Event], at: int) -> None:
    cut = [
        (name, line, *part)
        for name, line, start, end in events
        for part in (((start, at), (at, end)) if name in NAMES[:3] and start < at < end else ((start, end),))
    ]
    assert told(step(cut)) == told(step(events))


@given(st.lists(EVENTS, min_size=2, max_size=4), st.randoms(use_true_random=False))
def test_devices_in_another_order_are_rows_in_another_order(each: list[list[Event]], random: Any) -> None:
    order = list(range(len(each)))
    random.shuffle(order)
    devices = [device(events, f"TPU {at}") for at, events in enumerate(each)]
    plain = analyse([devices], MODULE, PROGRAM, ProfiledPlan())
    shuffled = analyse([[devices[at] for at in order]], MODULE, PROGRAM, ProfiledPlan())
    assert shuffled.devices == tuple(plain.devices[at] for at in order)
    assert shuffled.overlap == plain.overlap

    def hops(found: Profile, order: Sequence[int]) -> dict[Any, Any]:
        names = ("window_s", "hidden_s", "exposed_s", "skew_s", "round_compute_s")
        return {
            (hop.opcode, hop.turn): (hop.start_s, *([getattr(hop, name)[at] for at in order] for name in names))
            for hop in found.hops
        }

    assert hops(shuffled, range(len(order))) == hops(plain, order)


WINDOWS = st.lists(SPANS, min_size=1, max_size=3).map(union)
KEYS = [
    HopKey(Site((place,), "collective-permute", "forward", "ring", "kv", True, True), turn)
    for place in "ab"
    for turn in (0, 1)
]
STEPS = st.builds(
    lambda compute, hops, end: DeviceStep(union(compute), hops, {}, None, float(end)),
    st.lists(SPANS, max_size=6),
    st.dictionaries(st.sampled_from(KEYS), WINDOWS),
    st.integers(END, END + 10),
)


@given(st.lists(STEPS, min_size=1, max_size=3))
def test_every_moment_of_a_step_is_of_one_kind(steps: list[DeviceStep]) -> None:
    seen = DeviceSteps.of(steps)
    for at, made in enumerate(steps):
        parts = seen.parts(at)
        assert tuple(parts) == KINDS
        assert sum(map(length, parts.values())) == pytest.approx(seen.end_s)  # none overlap
        assert union(*parts.values()).tolist() == [[0.0, seen.end_s]]  # and none is left
        figures = seen.figures(at)
        assert figures["hidden_s"] == length(parts["hidden"])
        assert figures["compute_s"] == pytest.approx(length(parts["compute"]) + length(parts["hidden"]))
        # what is exposed is a transfer's own or a wait; the rest of the waits are at the end
        assert figures["exposed_s"] + (seen.end_s - made.end_s) == pytest.approx(
            length(parts["exposed"]) + figures["skew_s"]
        )


@given(st.lists(STEPS, min_size=1, max_size=3))
def test_somebody_never_waits(steps: list[DeviceStep]) -> None:
    """Of every hop the device with least exposed, and at the end the slowest."""
    seen = DeviceSteps.of(steps)
    for key in {key for made in steps for key in made.hops}:
        assert min(skews[key] for skews in seen.skews if key in skews) == 0
    assert any(made.end_s == seen.end_s for made in steps)
    assert all(skew >= 0 for skews in seen.skews for skew in skews.values())
