"""What a profile says as words and cells, a timeline coarsened, and the traces that a run.json may hold."""

import copy
from dataclasses import replace
from io import StringIO
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from stripectl.profiling.diagnosis import transfer_label
from stripectl.profiling.timeline import by_kind, merge_moments, moments
from stripectl.reporters.profile_text import cause_lines, hop_cells, opening, profile_source, profile_summary
from stripectl.reporters.terminal.profile import profile_parts
from stripectl.results.profile import Profile
from stripectl.results.records import read_record
from tests.support.factories import because
from tests.support.traces import DEVICES, TRACE, hop


def profile(**changes: Any) -> Profile:
    return read_record(Profile, TRACE | changes)


def test_a_moment_is_what_most_of_it_is() -> None:
    parts = by_kind([("compute", 0.0, 0.9), ("exposed", 0.9, 1.2), ("hidden", 1.2, 2.0), ("unheard of", 3.0, 4.0)])
    assert moments(parts, 4.0, 4) == ["compute", "hidden", "idle", "idle"]
    assert merge_moments(["compute", "hidden", "idle", "idle"], 4.0) == [
        ("compute", 0.0, 1.0),
        ("hidden", 1.0, 2.0),
        ("idle", 2.0, 4.0),
    ]


def test_a_timeline_as_fine_as_it_is_kept_comes_back_whole() -> None:
    rng = np.random.default_rng(0)
    kinds = rng.choice(["compute", "hidden", "exposed", "skew", "idle"], 500).tolist()
    assert moments(by_kind(merge_moments(kinds, 1.7)), 1.7, 500) == kinds


def test_the_share_is_of_the_device_that_computes_longest() -> None:
    assert profile_summary(profile(), None) == "25% of the communication hides on the device that computes longest"
    assert profile_summary(profile(), 0.875).endswith("(the compiled schedule predicts 88%)")
    assert profile_summary(profile(reason="no collective"), None) == "overlap n/a: no collective"
    assert profile_summary(Profile(reason=because("it is empty")), 0.5) == "overlap n/a: it is empty"
    assert profile_source(profile(), None) == "3 steps of jit_step"
    longest_s = max(device["step_s"] for device in DEVICES)
    assert (
        profile_source(profile(steps=1), longest_s / 1.5) == "1 step of jit_step, 50% slower than without the profile"
    )
    assert profile_source(profile(), longest_s / 1.05) == "3 steps of jit_step"


def test_a_hop_is_shown_where_most_of_it_is_exposed() -> None:
    hops, devices = profile().hops, profile().devices
    which = ("1", "forward", "ring", "collective-permute", "link")
    cells = (*which, "500 ms", "500 ms", "125 ms", "500 ms", "1.00 MiB", "2.00 MB/s", "TPU:1")
    assert hop_cells(hops[0], devices) == cells
    assert hop_cells(replace(hops[0], what="dkv"), devices)[3] == "dkv"
    assert hop_cells(hops[2], devices)[4] == "hidden"
    assert hop_cells(replace(hops[0], of_link=0.5), devices)[10] == "2.00 MB/s (50% of a link)"


def test_causes_that_are_alike_stand_once_with_the_worst_figures() -> None:
    (found,) = cause_lines(profile())
    assert found.which == "hop 2 and 1 more"
    assert found.why == "it moves 1 MiB in 750 ms"
    assert cause_lines(profile(hops=[hop(1, [1.0, 1.0], cause="late")]))[0].why == "n/a"


def test_the_command_for_a_profile() -> None:
    assert opening("run/profiles") == "xprof --logdir run/profiles --port 8791"


def without(*path: Any) -> dict[str, Any]:
    made = copy.deepcopy(TRACE)
    *to, last = path
    part: Any = made
    for each in to:
        part = part[each]
    del part[last]
    return made


@pytest.mark.parametrize("path", ["module", "steps", "hops", "axes", "operations", "timeline"])
def test_a_trace_without_a_part_is_read_and_shown(path: str) -> None:
    found = read_record(Profile, without(path))
    shown = StringIO()
    for part in profile_parts(found, "plan", 80):
        Console(file=shown, width=200).print(part)
    assert "25% of the communication" in shown.getvalue()


@pytest.mark.parametrize(
    ("at", "value"),
    [
        (("devices", 0, "ratio"), "half"),
        (("devices", 0, "name"), ["TPU"]),
        (("devices", 0, "step_s"), float("nan")),
        (("hops", 0, "exposed_s"), [1.0]),
        (("hops", 0, "advice"), 7),
        (("hops", 0, "bytes_per_s"), -1),
        (("hops", 0, "of_link"), "half"),
        (("operations", 0, "share"), "x"),
        (("timeline", "devices"), [5]),
        (("timeline", "devices", 0), [["compute", 0.0]]),
        (("timeline", "devices", 0, 0, 0), None),
        (("steps",), "three"),
        (("profile",), {"path": "x"}),
    ],
)
def test_a_trace_that_no_reader_can_show_is_refused(at: tuple[Any, ...], value: Any) -> None:
    made = copy.deepcopy(TRACE)
    *to, last = at
    part: Any = made
    for each in to:
        part = part[each]
    part[last] = value
    with pytest.raises(TypeError):
        read_record(Profile, made)


def test_a_hop_whose_bytes_are_unknown_does_not_move_0_bytes() -> None:
    """As in a profile of NCCL's kernels."""
    found = profile(hops=[hop(1, [0.25, 0.5], sent_bytes=0)])
    cells = hop_cells(found.hops[0], found.devices)
    assert cells[9:11] == ("n/a", "n/a")
    assert transfer_label(0, 0.5, 1e9) == "it takes 500 ms"
    assert transfer_label(2**20, 0.5, None) == "it moves 1.00 MiB in 500 ms (2.10 MB/s)"
