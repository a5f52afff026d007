"""What is said of TPU profiles drawn by hand, a character a microsecond, beside what a hand computes of them.

C is the union of compute, M that of transfers: hidden = |C and M|, exposed = |M minus C|. Each of K and V is 1 MB.
"""

from pathlib import Path
from typing import Any

import pytest

from tests.support.golden import PROFILES, TPU, analysed, column, tpus, us

PROGRAM = (PROFILES / "ring.hlo.txt").read_text()
INSTRUCTIONS = {
    line.split(" = ")[0].strip().removeprefix("ROOT ").lstrip("%"): line.strip().removeprefix("ROOT ")
    for line in PROGRAM.splitlines()
    if " = " in line
}
WHOLE = {  # the same legend, where names are whole texts of instructions, as on real TPUs
    letter: INSTRUCTIONS[said] if isinstance(said, str) else said for letter, said in TPU.items()
}

# Two turns, each: K in flight 0-16, V 1-18, M of a turn 0-18; C 2-12. Then an all-reduce, 4 us, and work, 6 us.
RING = """
    XLA Modules    MMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMMM
    XLA Ops        kvaaaaaaaaaaKKKKVVkvaaaaaaaaaaKKKKVVrrrrffffff..
"""
IN_A_LOOP = """
    XLA Ops        wwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwww............
"""
ASIDE = """
    Async XLA Ops  kkkkkkkkkkkkkkkk..kkkkkkkkkkkkkkkk..............
    Async XLA Ops  .vvvvvvvvvvvvvvvvv.vvvvvvvvvvvvvvvvv............
"""
STARTS_AND_DONES_ASIDE = """
    Async XLA Ops  kv.............K.Vkv.............K.V............
"""


def figures(**expected: float) -> dict[str, float]:
    """Of a device, those that are not 0 named."""
    return dict.fromkeys(("step", "compute", "hidden", "exposed", "skew", "idle", "stall"), 0) | expected


def one(tmp_path: Path, *rows: str, legend: Any = TPU, program: str | None = PROGRAM, **told: Any) -> dict[str, Any]:
    found = analysed(tmp_path, tpus("".join(rows), legend=legend), program, **told)
    return {name: value for name, value in found.items() if name not in ("operations", "operations_by", "timeline")}


def test_a_ring_and_an_all_reduce(tmp_path: Path) -> None:
    """C = 10 + 10 + 6 = 26. M = 18 + 18 + 4 = 40: K and V in flight together count once. Hidden 10 + 10, exposed 40 -
    20. Stall, in which only dones (6 + 6) and the all-reduce (4) run: 16. Idle: 48 - 46. An all-reduce computes
    nothing: all of it is exposed."""
    found = one(tmp_path, RING)
    (device,) = found["devices"]
    assert us(device) == figures(step=48, compute=26, hidden=20, exposed=20, idle=2, stall=16)
    assert us(found["overlap"]) == {"hidden": 20, "exposed": 20, "skew": 0, "stall": 16}
    assert found["overlap"]["ratio"] == device["ratio"] == 0.5

    assert column(found["hops"], "opcode") == ["collective-permute"] * 2 + ["all-reduce"]
    assert column(found["hops"], "hop") == [1, 2, 3]
    assert column(found["hops"], "turn") == [0, 1, 0]
    assert column(found["hops"], "start_s") == [0, 18, 36]
    assert column(found["hops"], "window_s") == [[18], [18], [4]]
    assert column(found["hops"], "hidden_s") == [[10], [10], [0]]
    assert column(found["hops"], "exposed_s") == [[8], [8], [4]]
    # K and V are one hop of 2 MB; all-reducing 4 kB over two devices sends 2 * 1/2 of it
    assert column(found["hops"], "sent_bytes") == [2_000_000, 2_000_000, 4_000]
    # 2 MB in 18 us, 4 kB in 4 us
    assert column(found["hops"], "bytes_per_s") == pytest.approx([2e6 / 18e-6, 2e6 / 18e-6, 1e9], rel=1e-5)


@pytest.mark.parametrize(
    "rows",
    [
        (RING, IN_A_LOOP),  # the loop's own event encloses everything, and computes nothing
        (RING, ASIDE),  # windows on a line of their own, as well as starts and dones
        (RING, STARTS_AND_DONES_ASIDE),  # and older: a line of their own for starts and dones
        (RING, ASIDE, IN_A_LOOP),
    ],
)
def test_the_same_program_has_the_same_answer_however_it_is_shown(tmp_path: Path, rows: tuple[str, ...]) -> None:
    assert one(tmp_path / "other", *rows) == one(tmp_path / "plain", RING)


@pytest.mark.parametrize("program", [PROGRAM, None], ids=["with its program", "without"])
def test_names_may_be_the_whole_text_of_instructions(tmp_path: Path, program: str | None) -> None:
    """Those say enough to do without the program, but for the pass and what fusions hold."""
    for at, rows in enumerate(((RING,), (RING, ASIDE, IN_A_LOOP), (RING, STARTS_AND_DONES_ASIDE))):
        whole = one(tmp_path / f"whole{at}", *rows, legend=WHOLE, program=program)
        assert whole == one(tmp_path / f"bare{at}", *rows)


def test_bare_names_without_their_program_say_nothing(tmp_path: Path) -> None:
    """Nothing tells what fusion.1 is, so nothing is claimed of it: no 0 % and no 0 seconds."""
    found = one(tmp_path, RING, program=None)
    assert found["overlap"] is None and found["devices"] == []
    assert "does not contain the program" in found["reason"]


def test_windows_alone_suffice(tmp_path: Path) -> None:
    """C 0-10. M 0-4 and 8-14: hidden 4 + 2, exposed 4. Nothing shows a device that waits."""
    found = one(
        tmp_path,
        """
        XLA Modules    MMMMMMMMMMMMMM
        XLA Ops        aaaaaaaaaa....
        Async XLA Ops  kkkk....kkkkkk
        """,
    )
    assert us(found["overlap"]) == {"hidden": 6, "exposed": 4, "skew": 0, "stall": 0}


def test_a_transfer_may_outlast_the_module(tmp_path: Path) -> None:
    """The step is as long as it: exposed 10 - 7, nothing waits for anybody."""
    found = one(
        tmp_path,
        """
        XLA Modules    MMMMMMMM..
        XLA Ops        kaaaaaaa..
        Async XLA Ops  kkkkkkkkkk
        """,
    )
    assert us(found["devices"][0]) == figures(step=10, compute=7, hidden=7, exposed=3)


def test_a_collective_inside_a_fusion_is_communication(tmp_path: Path) -> None:
    """fusion.3 holds an all-gather: M 4-9, exposed, of 1 MB sends half. fusion.4 multiplies what it gathers: 9-15 is
    compute and communication at once, so hidden. The first is late: nothing is computed before the next."""
    legend = {**TPU, "g": "fusion.3", "m": "fusion.4"}
    found = one(
        tmp_path,
        """
        XLA Modules    MMMMMMMMMMMMMMM
        XLA Ops        aaaagggggmmmmmm
        """,
        legend=legend,
    )
    assert us(found["devices"][0]) == figures(step=15, compute=10, hidden=6, exposed=5, stall=5)
    assert column(found["hops"], "opcode") == ["all-gather", "all-gather"]
    assert column(found["hops"], "sent_bytes") == [500_000, 500_000]
    assert column(found["hops"], "exposed_s") == [[5], [0]]
    assert [hop.get("cause") for hop in found["hops"]] == ["late", None]


def test_an_event_inside_another_counts_once(tmp_path: Path) -> None:
    """A done inside a fusion's event takes its time from it: C 1-9 without 4-6. M 0-6."""
    found = one(
        tmp_path,
        """
        XLA Modules    MMMMMMMMM
        XLA Ops        kaaaaaaaa
        XLA Ops        ....KK...
        """,
    )
    assert us(found["devices"][0]) == figures(step=9, compute=6, hidden=3, exposed=3, stall=2)


def test_calls_are_runs_of_the_module_that_took_longest(tmp_path: Path) -> None:
    """Two calls of jit_step, with another module between. Hidden 4 and 8, exposed 2 and 4: medians of two are means."""
    legend = {**TPU, "O": "jit_other(9)"}
    found = one(
        tmp_path,
        """
        XLA Modules    MMMMMMMOOOONNNNNNNNNNNNN
        XLA Ops        kaaaaKK.fff.kaaaaaaaaKKK
        """,
        legend=legend,
    )
    assert (found["module"], found["calls"]) == ("jit_step(1)", 2)
    assert found["other_programs"] == [{"module": "jit_other(9)", "calls": 1}]
    assert us(found["overlap"]) == {"hidden": 6, "exposed": 3.5, "skew": 0, "stall": 2.5}
    assert found["overlap"]["ratio"] == pytest.approx(6 / 9.5, rel=1e-5)
    assert column(found["devices"], "step_s") == [10]


def test_a_program_without_collectives_has_no_overlap(tmp_path: Path) -> None:
    found = one(
        tmp_path,
        """
        XLA Modules    MMMMMM
        XLA Ops        aaaa..
        """,
    )
    assert found["overlap"] is None and found["reason"] == "the profile holds no collective of the program"
    assert us(found["devices"][0]) == figures(step=6, compute=4, idle=2)
    assert found["devices"][0]["ratio"] is None


def test_a_start_without_its_done_is_no_window(tmp_path: Path) -> None:
    """Nobody knows when it ended."""
    found = one(
        tmp_path,
        """
        XLA Modules    MMMMMMMM
        XLA Ops        kaaaaaaa
        """,
    )
    assert found["overlap"] is None


@pytest.mark.parametrize(
    "other",
    [
        "",  # an idle chip
        "XLA Modules  MMMMMMMM",  # one whose operations were not recorded
        "XLA Modules  OOOOOOOO\nXLA Ops  ffff....",  # one that runs something else
    ],
)
def test_devices_that_take_no_part_are_left_out(tmp_path: Path, other: str) -> None:
    legend = {**TPU, "O": "jit_other(9)"}
    found = analysed(tmp_path, tpus(RING, other, legend=legend), PROGRAM)
    assert column(found["devices"], "name") == ["TPU 0"]
    assert us(found["overlap"]) == {"hidden": 20, "exposed": 20, "skew": 0, "stall": 16}
