"""Steps that were marked, and profiles without marks: k calls of a program are k calls, and never a step."""

from pathlib import Path
from typing import Any

import pytest

from stripectl.reporters.profile_text import cause_lines, profile_source
from stripectl.results.profile import Profile
from stripectl.results.records import read_record
from tests.support.golden import PROFILES, TPU, analysed, plane, tpus, us

PROGRAM = (PROFILES / "ring.hlo.txt").read_text()
COUNTS = [1, 2, 3, 5, 12]
LONG, SHORT = 1100, 3  # microseconds between calls: only the long pause is certainly none of a loop


def kernel(operation: str, module: str = "jit_step", program: int = 7) -> tuple[str, dict[str, Any]]:
    return f"kernel of {operation}", {"hlo_op": operation, "hlo_module": module, "program_id": program}


GPU: Any = {
    **{"a": kernel("fusion.1"), "k": kernel("collective-permute-start.1"), "f": kernel("fusion.2")},
    **{"r": kernel("all-reduce.1"), "o": kernel("fusion.2", "jit_other", 9)},
    **{"n": "ncclDevKernel_SendRecv", "h": "MemcpyH2D"},
}
# A call of jit_step on two streams: two turns of its loop, an all-reduce, and work. C 3 + 3 + 4, M 1-4, 5-8, 8-10.
CALL = ("aaa.aaa.rrffff", ".kkk.kkk......")
CALL_FIGURES = {"step": 14, "compute": 10, "hidden": 4, "exposed": 4, "skew": 0, "idle": 0}
TURN = ("aaa.", ".kkk")


def gpu(*parts: tuple[str, str], at: int = 0) -> str:
    """A GPU whose two streams run these parts, one after the other."""
    streams = ("".join(part[stream] for part in parts) for stream in range(2))
    return plane(f"/device:GPU:{at}", "\n".join(f"Stream #{at}  {row}" for at, row in enumerate(streams)), GPU)


def pause(length: int, letter: str = ".") -> tuple[str, str]:
    return letter * length, "." * length


def times(count: int, between: int, *call: tuple[str, str]) -> list[tuple[str, str]]:
    return [part for _ in range(count) for part in (*call, pause(between))]


def marks(*spans: tuple[int, int]) -> str:
    """A host that marks steps from one microsecond to another."""
    letters, ends = "ABCDEFGHIJKL", [0, *(end for _, end in spans)]
    row = "".join(
        "." * (start - before) + letter * (end - start)
        for letter, before, (start, end) in zip(letters, ends, spans, strict=False)
    )
    return plane("/host:CPU", f"python  {row}", {each: ("train", {"step_num": at}) for at, each in enumerate(letters)})


def said(found: dict[str, Any]) -> tuple[str, int | None, int | None]:
    return found["per"], found["steps"], found["calls"]


@pytest.mark.parametrize("program", [PROGRAM, None], ids=["with its program", "without"])
@pytest.mark.parametrize("count", COUNTS[1:])
def test_calls_of_a_gpu_are_counted_and_figures_are_of_one(tmp_path: Path, count: int, program: str | None) -> None:
    """The time between calls is in no figure."""
    found = analysed(tmp_path, gpu(*times(count, LONG, CALL)), program)
    assert said(found) == ("call", 0, count)
    assert us(found["devices"][0])["step"] == 14 and us(found["devices"][0])["idle"] == 0
    assert not program or us(found["devices"][0]) == CALL_FIGURES
    assert {row["name"]: row["count"] for row in found["operations"]}["fusion.1"] == 2 * count


@pytest.mark.parametrize("between", [0, SHORT])
@pytest.mark.parametrize("count", COUNTS)
def test_a_program_tells_its_calls_from_turns_of_its_loop(tmp_path: Path, count: int, between: int) -> None:
    """Without a pause, only the program says that the all-reduce runs once in a call."""
    calls = times(count, between, CALL)
    known, unknown = (
        analysed(tmp_path / name, gpu(*calls), program) for name, program in (("a", PROGRAM), ("b", None))
    )
    assert said(known) == ("call", 0, count) and us(known["devices"][0]) == CALL_FIGURES
    assert said(unknown) == ("profile", 0, None) and unknown["end"] is None


@pytest.mark.parametrize("program", [PROGRAM, None], ids=["with its program", "without"])
@pytest.mark.parametrize("count", COUNTS)
def test_turns_of_a_loop_are_no_calls(tmp_path: Path, count: int, program: str | None) -> None:
    found = analysed(tmp_path, gpu(*times(count, SHORT, TURN)), program)
    assert said(found) == ("profile", 0, None)


@pytest.mark.parametrize("count", COUNTS[1:])
def test_programs_in_turn_are_counted_apart(tmp_path: Path, count: int) -> None:
    """Of jit_other, twice as many calls, in no figure of jit_step."""
    other = (pause(LONG), pause(5, "o"))
    found = analysed(tmp_path, gpu(*times(count, LONG, CALL, *other, *other)), PROGRAM)
    assert (found["module"], *said(found)) == ("jit_step(7)", "call", 0, count)
    assert found["other_programs"] == [{"module": "jit_other(9)", "calls": 2 * count}]
    assert us(found["devices"][0]) == CALL_FIGURES


@pytest.mark.parametrize("program", [PROGRAM, None], ids=["with its program", "without"])
def test_a_profile_that_begins_or_ends_within_a_call_does_not_show_its_calls(
    tmp_path: Path, program: str | None
) -> None:
    first, rest = (CALL[0][:8], CALL[1][:8]), (CALL[0][8:], CALL[1][8:])
    for at, parts in enumerate(([rest, *([pause(LONG), CALL] * 2)], [rest, pause(LONG), CALL, pause(LONG), first])):
        found = analysed(tmp_path / str(at), gpu(*parts), program)
        assert said(found) == ("profile", 0, None)


def test_gpus_with_other_numbers_of_calls_show_none(tmp_path: Path) -> None:
    gpus = [gpu(*times(count, LONG, CALL), at=at) for at, count in enumerate((3, 4))]
    assert said(analysed(tmp_path, "".join(gpus), PROGRAM)) == ("profile", 0, None)


def test_processes_may_number_the_program_differently(tmp_path: Path) -> None:
    first = gpu(*times(3, LONG, CALL))
    found = analysed(tmp_path, [first, first.replace("int64_value: 7", "int64_value: 8")], PROGRAM)
    assert said(found) == ("call", 0, 3)
    assert [us(device) for device in found["devices"]] == [CALL_FIGURES] * 2


def test_kernels_without_a_program_belong_to_the_call_before(tmp_path: Path) -> None:
    """NCCL's kernel ends the call; the copy for the next call is in no call."""
    call = ("aaa.ffff.........", "...nnnnnnnnnn....")
    found = analysed(tmp_path, gpu(*times(4, LONG, call, pause(20, "h"))), PROGRAM)
    assert said(found) == ("call", 0, 4)
    assert us(found["devices"][0]) == {"step": 13, "compute": 7, "hidden": 4, "exposed": 6, "skew": 0, "idle": 0}


@pytest.mark.parametrize("count", COUNTS)
def test_marked_steps_of_a_gpu_are_steps(tmp_path: Path, count: int) -> None:
    """Each step has two calls."""
    step = 2 * len(CALL[0]) + 2 * SHORT + LONG
    host = marks(*((at * step, at * step + 40) for at in range(count)))
    found = analysed(tmp_path, host + gpu(*times(count, LONG, *times(2, SHORT, CALL))), PROGRAM)
    assert said(found) == ("step", count, None)
    assert us(found["devices"][0])["compute"] == 20


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("each", [1, 2])
def test_runs_of_a_tpu_are_steps_where_a_host_marks_as_many(tmp_path: Path, count: int, each: int) -> None:
    """Without marks they are calls, and so they are where a step has two of them."""
    legend = {**TPU, "M": "jit_step(1)"}
    runs = count * each
    chip = tpus(f"XLA Modules  {'MMMMMM.' * runs}\nXLA Ops  {'kaaaK..' * runs}", legend=legend)
    host = marks(*((at * 7 * each, at * 7 * each + 6 * each) for at in range(count)))
    marked, unmarked = (
        analysed(tmp_path / name, text, PROGRAM) for name, text in (("marked", host + chip), ("unmarked", chip))
    )
    assert said(unmarked) == ("call", 0, runs)
    assert said(marked) == (("step", count, None) if each == 1 else ("call", count, runs))
    assert marked["devices"] == unmarked["devices"]


SOURCES = {
    ("step", 3, None): ("3 steps of jit_step", []),
    ("call", 0, 1): ("1 call of jit_step; steps are not marked", ["not marked"]),
    ("call", 0, 5): ("5 calls of jit_step; steps are not marked", ["not marked"]),
    ("call", 3, 6): ("6 calls of jit_step in 3 marked steps", []),
    ("profile", 0, None): ("the whole profile of jit_step; steps are not marked", ["not marked"]),
    ("profile", 2, None): ("the whole profile of jit_step in 2 marked steps", ["early"]),
}


@pytest.mark.parametrize("extent", SOURCES)
def test_a_profile_says_what_its_figures_are_of(extent: tuple[str, int, int | None]) -> None:
    per, steps, calls = extent
    figures = dict.fromkeys(("step_s", "compute_s", "hidden_s", "exposed_s", "skew_s", "idle_s"), 1.0)
    given = {"module": "jit_step(7)", "per": per, "steps": steps, "calls": calls, "devices": [{"name": "a", **figures}]}
    found = read_record(Profile, given)
    source, causes = SOURCES[extent]
    assert profile_source(found, None) == source
    lines = cause_lines(found)
    assert [line.cause for line in lines] == causes
    assert all("StepTraceAnnotation" in line.advice for line in lines if line.cause == "not marked")
