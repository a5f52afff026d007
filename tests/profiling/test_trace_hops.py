"""Hops of hand-drawn TPU profiles over several devices: which transfers make one, over which axis, who waits for whom,
and what exposes it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stripectl.hlo.replica_groups import axis_of
from stripectl.profiling.device_steps import DeviceSteps
from stripectl.profiling.diagnosis import ProfiledPlan, cause
from stripectl.profiling.overlap import hop_rows
from stripectl.profiling.program import Site
from stripectl.profiling.steps import DeviceStep, HopKey
from stripectl.reporters.terminal import profile
from stripectl.results.profile import Profile
from stripectl.results.records import read_record
from tests.support.golden import PROFILES, TPU, analysed, column, tpus, us

RING, UNROLLED, AXES = ((PROFILES / f"{name}.hlo.txt").read_text() for name in ("ring", "unrolled", "axes"))

# K and V leave together at 0. TPU 0 computes 10 us and then stalls 2 for K and V to arrive at 14; TPU 1 has less to do,
# 4 us, and stalls 8; after the hop TPU 0 has 6 us of work, TPU 1 has 3.
SLOW = """
    XLA Modules    MMMMMMMMMMMMMMMMMMMM
    XLA Ops        kvaaaaaaaaaaKVffffff
"""
FAST = """
    XLA Modules    MMMMMMMMMMMMMMMMM...
    XLA Ops        kvaaaaKKKKKKKVfff...
"""
SLOW_FIGURES = {"step": 20, "compute": 16, "hidden": 10, "exposed": 4, "skew": 0, "idle": 0, "stall": 2}
FAST_FIGURES = {"step": 17, "compute": 7, "hidden": 4, "exposed": 10, "skew": 9, "idle": 0, "stall": 8}


def test_a_device_waits_in_a_hop_and_at_the_end(tmp_path: Path) -> None:
    """M is 0-14 on both. TPU 0: hidden 10, exposed 4 (two to start, two to end). TPU 1: hidden 4, exposed 10. The
    least exposed is 4, so TPU 1 waits 6 in the hop, and 3 at the end, where TPU 0 ends at 20 and it at 17: 9.

    The whole is told of the device that computes longest, TPU 0; skew and stall of the one with most, TPU 1.
    """
    found = analysed(tmp_path, tpus(SLOW, FAST), RING)
    assert column(found["devices"], "name") == ["TPU 0", "TPU 1"]
    assert [us(device) for device in found["devices"]] == [SLOW_FIGURES, FAST_FIGURES]
    assert us(found["overlap"]) == {"hidden": 10, "exposed": 4, "skew": 9, "stall": 8}
    assert found["overlap"]["ratio"] == pytest.approx(10 / 14, rel=1e-5)

    assert found["end"]["why"] == "TPU 1 waits 3.00 us of a call of 20.0 us for TPU 0"

    (hop,) = found["hops"]
    assert us(hop) == {
        **{"start": 0, "window": [14, 14], "hidden": [10, 4], "exposed": [4, 10], "skew": [0, 6], "transfer": 14},
        "round_compute": [16, 7],
    }
    assert (hop["cause"], hop["why"].partition(";")[0]) == (
        "skew",
        "of 10.0 us exposed, 6.00 us are a wait for a slower device",
    )


def test_a_step_is_drawn_as_it_went(tmp_path: Path) -> None:
    """A character a microsecond again. Of TPU 1's 10 us exposed the first 6 are waiting, 2 before its compute."""
    lines = [
        line.plain
        for line in profile.drawn_timeline(
            read_record(Profile, analysed(tmp_path, tpus(SLOW, FAST), RING)), len("TPU 0 ") + 20
        )
    ]
    assert lines[1:] == [
        "TPU 0 ░░▓▓▓▓▓▓▓▓▓▓░░██████",
        "TPU 1 ~~▓▓▓▓~~~~░░░░███~~~",
    ]


def test_processes_may_have_clocks_that_differ_by_seconds(tmp_path: Path) -> None:
    """Each counts from where its own step begins."""
    found = analysed(tmp_path, [tpus(SLOW, offset_s=1.0), tpus(FAST, offset_s=3607.25)], RING)
    assert column(found["devices"], "name") == ["process 0", "process 1"]
    assert [us(device) for device in found["devices"]] == [SLOW_FIGURES, FAST_FIGURES]
    assert column(found["hops"], "skew_s") == [[0, 6]]


def test_devices_of_a_process_share_their_clock(tmp_path: Path) -> None:
    """TPU 1 begins its module 3 us after TPU 0: it ends at 20 too, so nobody waits at the end, and its first 3 us are
    idle."""
    late = "\n".join(line.replace("    M", "    ...M").replace("    k", "    ...k") for line in FAST.splitlines())
    found = analysed(tmp_path, tpus(SLOW, late.replace("...\n", "\n")), RING)
    assert us(found["devices"][1]) == FAST_FIGURES | {"step": 20, "skew": 6, "idle": 3}


def test_calls_of_processes_belong_together_by_their_run(tmp_path: Path) -> None:
    """The second process's profile began a call later; runs 0 and 1, and 1 and 2: only run 1 is both's. There the
    first computes 6 us and the second 2."""
    first = """
        XLA Modules    MMMMMMMM.NNNNNNNN
        XLA Ops        kaaK.....kaaaaaaK
    """
    second = """
        XLA Modules    NNNNNNNN.OOOOOOOO
        XLA Ops        kaa....K.kaaaa..K
    """
    legend = {**TPU, "O": ("jit_step(1)", {"run_id": 2})}
    found = analysed(tmp_path, [tpus(first, legend=legend), tpus(second, legend=legend)], RING)
    assert found["calls"] == 1
    assert column(found["devices"], "compute_s") == [6, 2]
    assert column(found["hops"], "skew_s") == [[0, 4]]


def test_a_hop_that_one_device_lacks_begins_where_the_others_begin_it(tmp_path: Path) -> None:
    """Its start is that of TPU 0, and its time on TPU 1 is none; it comes after the hop before it."""
    found = analysed(
        tmp_path,
        tpus(
            """
            XLA Modules    MMMMMMMMMMMM
            XLA Ops        rrraaakaaaKK
            """,
            """
            XLA Modules    MMMMMMMMMMMM
            XLA Ops        rrraaaaaaa..
            """,
        ),
        RING,
    )
    assert column(found["hops"], "opcode") == ["all-reduce", "collective-permute"]
    assert column(found["hops"], "start_s") == [0, 6]
    assert column(found["hops"], "window_s") == [[3, 3], [6, 0]]


def test_unrolled_hops_are_told_apart_by_what_waits_for_what(tmp_path: Path) -> None:
    """K and V of a hop wait for those before it, K's second through a copy; which of the two the compiler runs first is
    no matter. Each hop is 2 us for 2 MB: 1 TB/s."""
    legend = {letter: f"ppermute.{letter}" for letter in "123456"}
    legend |= {**{letter: f"fusion.{at}" for at, letter in enumerate("abc", 1)}, "y": "copy.1", "M": TPU["M"]}
    drawing = """
        XLA Modules    MMMMMMMMMMMMMMMMMM
        XLA Ops        12aaaay43bbbb65ccc
    """
    found = analysed(tmp_path, tpus(drawing, legend=legend), UNROLLED, axes={"ring": 4})
    assert column(found["hops"], "axis") == ["ring"] * 3
    assert column(found["hops"], "turn") == [0, 0, 0]
    assert column(found["hops"], "start_s") == [0, 7, 13]
    assert column(found["hops"], "window_s") == [[2], [2], [2]]
    assert column(found["hops"], "sent_bytes") == [2_000_000] * 3
    assert column(found["hops"], "bytes_per_s") == [1e12] * 3
    assert us(found["overlap"]) == {"hidden": 0, "exposed": 6, "skew": 0, "stall": 6}


AXIS_LEGEND = {
    **{"k": "collective-permute-start.1", "K": "collective-permute-done.1", "a": "fusion.1", "r": "all-reduce.1"},
    **{"s": "reduce-scatter.1", "g": "all-gather.1", "t": "all-to-all.1", "e": "all-reduce.2", "M": TPU["M"]},
}
# permute 10 us, beside 8 of compute; then 2, 1, 6, 7 and 4 us of blocking collectives
ON_AXES = """
    XLA Modules    MMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMM
    XLA Ops        kaaaaaaaaKrrsggggggttttttteeee
"""


def test_figures_of_an_axis_are_those_of_the_collectives_along_it(tmp_path: Path) -> None:
    """On a mesh ring=4, tensor=2, device = 2 ring + tensor. Each block X is 1 MB.

    ring    pairs {0,2}..{7,1}, and [2,4]<=[4,2]T(1,0), which is {0,2,4,6},{1,3,5,7}: the permute sends X, the
            all-gather of 4 X sends 3/4 of it: 4 MB; 10 + 6 us, of which 8 hide: 250 GB/s
    tensor  {0,1},{2,3}.., and [4,2]<=[8], the same: the all-reduce sends 2 * 1/2 X, the reduce-scatter whose result is
            X/2 sends X/2: 1.5 MB in 3 us, all exposed: 500 GB/s
    both    [1,8]<=[8]: the all-to-all sends 7/8 X in 7 us: 125 GB/s
    all     no groups at all
    """
    found = analysed(tmp_path, tpus(ON_AXES, legend=AXIS_LEGEND), AXES, axes={"ring": 4, "tensor": 2})
    axes = {row["axis"]: row for row in found["axes"]}
    assert list(axes) == ["ring", "tensor", "ring+tensor", "all devices"]
    assert us(axes["ring"]) == {"hidden": 8, "exposed": 8}
    assert us(axes["tensor"]) == {"hidden": 0, "exposed": 3}
    assert us(axes["ring+tensor"]) == {"hidden": 0, "exposed": 7}
    assert column(found["axes"], "sent_bytes")[:3] == [4_000_000, 1_500_000, 875_000]
    assert column(found["axes"], "bytes_per_s")[:3] == pytest.approx([250e9, 500e9, 125e9])
    assert axes["ring"]["ratio"] == 0.5


def test_without_a_mesh_an_axis_is_how_many_devices_reach_each_other(tmp_path: Path) -> None:
    found = analysed(tmp_path, tpus(ON_AXES, legend=AXIS_LEGEND), AXES)
    told = ["4 devices, stride 2", "2 devices, stride 1", "8 devices, stride 1", "all devices"]
    assert column(found["axes"], "axis") == told
    assert column(found["axes"], "sent_bytes")[:3] == [4_000_000, 1_500_000, 875_000]


def caused(tmp_path: Path, rows: str, **told: Any) -> dict[str, Any]:
    """The first hop of a device whose step these rows show."""
    return analysed(tmp_path, tpus(rows), RING, **told)["hops"][0]


LINKS = {"link_bytes_per_s": 200e9}  # 2 MB take 10 us


def test_cause_link(tmp_path: Path) -> None:
    """2 MB in 14 us are 143 GB/s of 200; even at 200, 10 us are longer than the 8 of compute, of which 4 are beside."""
    drawing = """
        XLA Modules    MMMMMMMMMMMMMMMMMM
        XLA Ops        kvaaaaKKKKKKKVffff
    """
    hop = caused(tmp_path, drawing, **LINKS)
    assert hop["cause"] == "link"
    assert hop["why"].startswith(
        "it moves 1.91 MiB in 14.0 us (143 GB/s, a link has 200 GB/s), which is longer than the compute"
    )
    assert "8.00 us of compute follow it in its round" in hop["why"]


def test_cause_short(tmp_path: Path) -> None:
    """The link needs 10 us and 4 + 9 are there to hide it, but only 4 lie between its start and its end."""
    drawing = """
        XLA Modules    MMMMMMMMMMMMMMMMMMMMMMMMMMMM
        XLA Ops        kvaaaaKKKKKKKVfffffffff
    """
    hop = caused(tmp_path, drawing, **LINKS)
    assert (hop["cause"], hop["advice"].split()[0]) == ("short", "a")
    assert "(143 GB/s, a link has 200 GB/s), 13.0 us of compute follow it in its round" in hop["why"]
    rolled = caused(tmp_path, drawing, **LINKS, unroll=1, turns=7)
    assert rolled["advice"].startswith("unroll=7 in the plan")


def test_cause_late(tmp_path: Path) -> None:
    """Nothing follows the transfer: of the 2 us of work none lies after its start."""
    drawing = """
        XLA Modules    MMMMMMMM
        XLA Ops        ffkvKKKV
    """
    hop = caused(tmp_path, drawing)
    assert hop["cause"] == "late"
    assert "it moves 1.91 MiB in 6.00 us (333 GB/s)" in hop["why"]
    assert hop["advice"] == "start it earlier"


def test_cause_synchronous(tmp_path: Path) -> None:
    """The all-reduce blocks for 4 us, and 6 us of compute that could hide it follow. Its flag is its own."""
    drawing = """
        XLA Modules    MMMMMMMMMMMM
        XLA Ops        aarrrrffffff
    """
    hop = caused(tmp_path, drawing)
    assert hop["cause"] == "synchronous"
    assert hop["why"].endswith("it moves 3.91 KiB in 4.00 us (1.00 GB/s), 6.00 us of compute follow it in its round")
    assert hop["advice"] == "--xla-flag xla_enable_async_all_reduce=true"


def test_what_hides_has_no_cause(tmp_path: Path) -> None:
    """25 us in flight, 24 beside compute: 4 % exposed is no more than a start costs."""
    hop = caused(
        tmp_path,
        """
        XLA Modules    MMMMMMMMMMMMMMMMMMMMMMMMMM
        XLA Ops        kaaaaaaaaaaaaaaaaaaaaaaaaf
        Async XLA Ops  kkkkkkkkkkkkkkkkkkkkkkkkk.
        """,
    )
    assert us(hop)["exposed"] == [1] and hop["cause"] is None


BLOCKING = Site((), "collective-permute", "forward", "ring", "kv", False, False)
BESIDE, ALONE = BLOCKING._replace(asynchronous=True, beside_compute=True), BLOCKING._replace(asynchronous=True)


@pytest.mark.parametrize(
    ("site", "exposed_us", "skew_us", "round_us", "told", "expected"),
    [
        (BESIDE, 10, 6, 0, {}, ("skew", "balance the work of the devices")),
        (BESIDE, 10, 6, 0, {"layout": "contiguous", "mask": "causal"}, ("skew", "a layout that balances")),
        (BESIDE, 10, 5, 0, {}, ("late", "start it earlier")),  # half of it is not most of it
        (BLOCKING, 10, 0, 0.4, {}, ("late", "start it earlier")),  # less than 5 % of 10 us
        (BLOCKING, 10, 0, 0.4, {"unroll": 1, "turns": 3}, ("late", "unroll=3 in the plan")),
        (BLOCKING, 10, 0, 9, {"layout": "striped"}, ("link", "a longer block on each device")),
        (BLOCKING, 10, 0, 11, {"platform": "cpu"}, ("synchronous", "a TPU or GPU: XLA on CPU")),
        (BLOCKING, 10, 0, 11, {"platform": "cpu", "unroll": 1, "turns": 1}, ("synchronous", "a TPU or GPU")),
        (BLOCKING, 10, 0, 11, {"platform": "cpu", "unroll": 1, "turns": 7}, ("synchronous", "unroll=7 in the plan")),
        (BLOCKING, 10, 0, 11, {"platform": "gpu"}, ("synchronous", "--xla-flag xla_gpu_enable_latency")),
        (BLOCKING, 10, 0, 11, {"platform": "tpu"}, ("synchronous", "--xla-flag xla_enable_async_collective_perm")),
        (ALONE, 10, 0, 11, {}, ("late", "start it before the compute")),
        (BESIDE, 10, 0, 9, {"link_bytes_per_s": 250e9}, ("short", "a longer block")),  # a link needs 8 us
        (BESIDE, 10, 0, 7, {"link_bytes_per_s": 250e9}, ("link", "send less")),
        (BLOCKING, 10, 0, 9, {"link_bytes_per_s": 250e9}, ("link", "send less")),  # no window to hide in: what it took
    ],
)
def test_causes_come_in_order(
    site: Site, exposed_us: float, skew_us: float, round_us: float, told: dict[str, Any], expected: Sequence[str]
) -> None:
    """Of a transfer of 2 MB that took 10 us: what waits for others first, then what has nothing to hide behind, what is
    too slow for it, and what the schedule makes of the rest."""
    figures = {"exposed_s": exposed_us * 1e-6, "skew_s": skew_us * 1e-6, "round_compute_s": round_us * 1e-6}
    found = cause(site, figures, 10e-6, 2_000_000, ProfiledPlan(**told))
    assert found.cause == expected[0] and found.advice.startswith(expected[1])
    assert "it moves 1.91 MiB in 10.0 us (200 GB/s" in found.why


def test_the_figures_of_a_hop_belong_together() -> None:
    """Exposed for 1, 11 and 20 us in three steps, of which 0, 10 and 0 us are skew: the step in the middle tells that
    the hop waits for a peer; medians of each figure would say 11 us exposed and no skew."""
    key, none = HopKey(BLOCKING, 0), np.empty((0, 2))

    def step(exposed: float, skew: float) -> DeviceSteps:
        windows = [np.array([[0.0, length]]) for length in (exposed, exposed - skew)]
        return DeviceSteps.of([DeviceStep(none, {key: window}, {key: 8}, none, exposed) for window in windows])

    (hop,) = hop_rows([step(1, 0), step(20, 0), step(11, 10)], ProfiledPlan())
    assert (hop.exposed_s, hop.skew_s, hop.transfer_s) == ((11, 1), (10, 0), 1)
    assert hop.cause == "skew"


def test_axes_that_the_compiler_names_have_its_names() -> None:
    def named(groups: str) -> str:
        return axis_of(f"%x), replica_groups=mesh['x'=4,'y'=2]{groups}", {})

    assert named(" {'y'}") == "y"
    assert named(", device_ids=([4,2]T(1,0)) {'x':(2)2,'y'}") == "x+y"


def test_of_a_hop_inside_a_kernel_a_profile_shows_nothing(tmp_path: Path) -> None:
    """Two rounds of a ring over two devices, 6 us each, and a last one of 4 us without a hop."""
    kernel = "%stripectl_backward_hop_ring_2_of_1"
    results = "(f32[4,1,8,128]{3,2,1,0}, bf16[4,8,128]{2,1,0:T(8,128)(2,1)}, bf16[4,8,128]{2,1,0:T(8,128)(2,1)})"
    calls = [f'custom-call({of}), custom_call_target="tpu_custom_call"' for of in ("%q", f"{kernel}.1", f"{kernel}.2")]
    hops = "".join(f"  {kernel}.{at + 1} = {results} {calls[at]}\n" for at in range(2))
    last = f"  ROOT %stripectl_backward = f32[8]{{0}} {calls[2]}"
    program = f"HloModule jit_step\n\nENTRY %main (q: f32[8]) -> f32[8] {{\n{hops}{last}\n}}\n"
    legend = dict(zip("Mabl", ("jit_step(1)", f"{kernel}.1", f"{kernel}.2", "%stripectl_backward"), strict=True))
    drawing = """
        XLA Modules    MMMMMMMMMMMMMMMM
        XLA Ops        aaaaaabbbbbbllll
    """
    found = analysed(tmp_path, tpus(drawing, drawing, legend=legend), program, axes={"ring": 2})
    assert found["overlap"] is None and not found["hops"] and "kernels of the program send its hops" in found["reason"]
    assert us(found["devices"][0])["compute"] == 16
