"""Golden profiles of the three platforms, as text protos: what each shows, and the same figures out of all of them.

Every drawing is of the file it stands beside; a character is a microsecond.
"""

from pathlib import Path
from typing import Any

import pytest

from tests.support.golden import PROFILES, TPU, analysed, column, plane, us


def golden(tmp_path: Path, name: str, program: str | None, **axes: int) -> dict[str, Any]:
    text = (PROFILES / f"{name}.txtpb").read_text()
    return analysed(tmp_path, text, program and (PROFILES / f"{program}.hlo.txt").read_text(), axes)


@pytest.mark.parametrize("program", ["ring", None])
def test_tpu(tmp_path: Path, program: str | None) -> None:
    """The permute's window is on a line of its own, and so is a copy's, which is no communication. Its done is neither
    compute nor stall, and a SparseCore is no device.

    XLA Ops        wwwwwwwwwwwwwwwwwwwwwwww..   the loop
                   kaaaaaaaaKKKkaaaaaaaaKKKdd   C 16
    Async XLA Ops  kkkkkkkkkkkk                 M 24: hidden 16, exposed 2 * (1 + 3)
                               kkkkkkkkkkkk
                     ccccccccccccccccccccccc    a copy to fast memory
    """
    found = golden(tmp_path, "tpu", program, ring=2)
    assert (found["module"], column(found["devices"], "name")) == ("jit_step(12)", ["TPU 0"])
    assert us(found["devices"][0]) == {
        **{"step": 26, "compute": 16, "hidden": 16, "exposed": 8, "skew": 0, "idle": 2, "stall": 6}
    }
    assert column(found["hops"], "turn") == [0, 1]
    assert column(found["hops"], "start_s") == [0, 12]
    assert column(found["hops"], "axis") == ["ring", "ring"]
    assert column(found["hops"], "sent_bytes") == [1_000_000] * 2
    assert column(found["hops"], "bytes_per_s") == pytest.approx([1e6 / 12e-6] * 2, rel=1e-5)


def test_gpu(tmp_path: Path) -> None:
    """A stream for each kind. The kernel that names no operation computes, the copy from the host does neither, the
    copy between peers communicates though nothing says so but its name.

    #7   fffffffffffcc....gggg..   C 0-12 and 16-20: 16
    #9   ..nnnnnnnnnnnn........   collective-permute-start.1, M 2-14
    #11  .............ppp......   MemcpyP2P, M 13-16; so M is 2-16: hidden 2-12, exposed 12-16
    #13  ...........hhhhhhhhhhh   MemcpyH2D until 22: idle 20-22
    """
    found = golden(tmp_path, "gpu", "ring", ring=2)
    assert (found["module"], found["steps"]) == ("jit_step(3)", 2)
    (device,) = found["devices"]
    # a step begins where the host marks it, half a microsecond before its first kernel
    assert us(device) == {"step": 22.5, "compute": 16, "hidden": 10, "exposed": 4, "skew": 0, "idle": 2.5}
    assert found["overlap"]["stall_s"] is None and found["overlap"]["ratio"] == pytest.approx(10 / 14, rel=1e-5)
    assert column(found["hops"], "opcode") == ["collective-permute", "peer copy"]
    assert column(found["hops"], "window_s") == [[12], [3]]
    assert column(found["hops"], "exposed_s") == [[2], [3]]
    assert column(found["hops"], "sent_bytes") == [1_000_000, 0]
    # 1 MB in 12 us; of a copy that nobody knows, how much it moved neither
    assert found["hops"][0]["bytes_per_s"] == pytest.approx(1e6 / 12e-6, rel=1e-5)
    assert found["hops"][1]["bytes_per_s"] is None


def test_gpu_without_its_program(tmp_path: Path) -> None:
    """Kernels of NCCL are communication by their name; of what is not known, the pass, the axis and the bytes."""
    found = golden(tmp_path, "gpu", None)
    assert us(found["devices"][0]) == {
        **{"step": 22.5, "compute": 16, "hidden": 10, "exposed": 4, "skew": 0, "idle": 2.5}
    }
    assert column(found["hops"], "opcode") == ["peer copy"] * 2
    assert column(found["axes"], "axis") == ["unknown axis"]


def test_gpu_without_marked_steps_or_calls_is_the_whole_profile(tmp_path: Path) -> None:
    """From its first kernel to the end of its last: two streams, 0-5 and 4-9. The program says that fusion.1 is in a
    loop, so it may be one turn of several."""
    legend = {"a": ("gemm", {"hlo_op": "fusion.1", "hlo_module": "jit_step"}), "n": "ncclDevKernel_AllGather"}
    drawing = """
        Stream #1(Compute)  aaaaa....
        Stream #2(NCCL)     ....nnnnn
    """
    found = analysed(tmp_path, plane("/device:GPU:3", drawing, legend), (PROFILES / "ring.hlo.txt").read_text())
    assert (found["steps"], found["per"], column(found["devices"], "name")) == (0, "profile", ["GPU 3"])
    assert us(found["devices"][0]) == {"step": 9, "compute": 5, "hidden": 1, "exposed": 4, "skew": 0, "idle": 0}


@pytest.mark.parametrize("marks", ["sssttt.........", "sssssss....tttt"], ids=["under way", "without work"])
def test_steps_that_a_host_marks_ahead_of_a_gpu_do_not_divide_its_work(tmp_path: Path, marks: str) -> None:
    """Two steps that were sent off together, at 0 and 3, while the GPU runs the first until 6 and the second until 11.
    By the marks, the second would be all there is. So is one marked when all is done."""
    legend: Any = {"a": ("gemm", {"hlo_op": "fusion.1", "hlo_module": "jit_step"}), "n": "ncclDevKernel_AllGather"}
    host = plane("/host:CPU", f"python  {marks}", {each: ("train", {"step_num": at}) for at, each in enumerate("st")})
    gpu = """
        Stream #1(Compute)  .aaaa..aaa.
        Stream #2(NCCL)     ...nnn..nnn
    """
    found = analysed(tmp_path, host + plane("/device:GPU:0", gpu, legend), (PROFILES / "ring.hlo.txt").read_text())
    assert (found["steps"], found["per"], found["calls"]) == (2, "profile", None)
    assert us(found["devices"][0]) == {"step": 10, "compute": 7, "hidden": 4, "exposed": 2, "skew": 0, "idle": 1}


def test_cpu(tmp_path: Path) -> None:
    """Both devices use both threads; what runs on which says the event. The loop and the call around dot.1 contain.
    Another module runs beside it on CPU 1, 17-19, with a dot.1 of its own, which is none of this program's.

              CPU 0                     CPU 1
    thread 1  wwwwwwwwwwwwwwwwwwww
              ccccccccccpppp........    .............. aaa
              .dddddddd.
    thread 2                            wwwwwwwwwwwwwwwwwwww
              .............. aaaaaa     ccccpppppppppp
                                        .dd.
    CPU 0: C 1-9 and 14-20, 14; M 10-14, exposed 4. CPU 1: C 1-3 and 14-17, 5; M 4-14, exposed 10, of which it waits 6.
    Both end with the loop, at 20. Stall is all of M; idle is 20 - 14 - 4 and 20 - 5 - 10.
    """
    found = golden(tmp_path, "cpu", "cpu", ring=2)
    assert (found["module"], found["steps"], found["calls"]) == ("jit_step(4)", 0, 1)
    assert column(found["devices"], "name") == ["CPU 0", "CPU 1"]
    assert [us(device) for device in found["devices"]] == [
        {"step": 20, "compute": 14, "hidden": 0, "exposed": 4, "skew": 0, "idle": 2, "stall": 4},
        {"step": 20, "compute": 5, "hidden": 0, "exposed": 10, "skew": 6, "idle": 5, "stall": 10},
    ]
    assert us(found["overlap"]) == {"hidden": 0, "exposed": 4, "skew": 6, "stall": 10}
    assert found["overlap"]["ratio"] == 0
    (hop,) = found["hops"]
    assert (hop["sent_bytes"], hop["bytes_per_s"]) == (1_000_000, pytest.approx(250e9))  # 1 MB in 4 us
    assert found["operations_by"] == "events of the profile"
    assert {row["name"]: row["count"] for row in found["operations"]} == {"dot.1": 2, "ppermute.1": 2, "wrapped_add": 2}


def test_a_profile_of_the_host_alone_says_why_it_says_nothing(tmp_path: Path) -> None:
    found = golden(tmp_path, "host", None)
    assert (found["overlap"], found["reason"]) == (None, "the profile holds no operation of any device")


def test_the_process_of_a_host_alone_is_no_device(tmp_path: Path) -> None:
    """As a coordinator leaves beside those that computed."""
    texts = [(PROFILES / f"{name}.txtpb").read_text() for name in ("host", "cpu")]
    found = analysed(tmp_path, texts, (PROFILES / "cpu.hlo.txt").read_text())
    assert column(found["devices"], "name") == ["CPU 0", "CPU 1"]


def test_golden_profiles_use_the_names_of_drawings() -> None:
    assert all(f"%{said}" in (PROFILES / "ring.hlo.txt").read_text() for said in TPU.values() if isinstance(said, str))


def test_operations_of_a_chip_are_xprofs(tmp_path: Path) -> None:
    """fusion.1 takes 10 us twice, the all-reduce 5 us twice: two and one third of 30 us. The category is xprof's."""
    found = golden(tmp_path, "described", None)
    assert (found["module"], found["calls"], found["operations_by"]) == ("jit_step(7)", 2, "xprof")
    told = [(row["name"], row["category"], row["count"], row["self_s"]) for row in found["operations"]]
    assert told == [("fusion.1", "convolution fusion", 2, 20e-6), ("all-reduce.1", "all-reduce", 2, 10e-6)]
    assert column(found["operations"], "share") == pytest.approx([2 / 3, 1 / 3], rel=1e-5)
    assert us(found["overlap"]) == {"hidden": 0, "exposed": 5, "skew": 0, "stall": 5}
