"""A host of a run dies, hangs, loses its network, comes back, is slow, or has another version."""

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from stripectl.results.run import Run
from tests.support.fault_times import Record, hosts, timed
from tests.support.hosts import BENCH, OTHER_PROGRAM, OTHER_VERSION, Slice, ends, is_worker, long_run, sampling
from tests.support.network import NAMESPACES
from tests.support.processes import alive, children, wait_for

pytestmark = pytest.mark.hosts
COUNTS = pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.full)])
NETWORK = pytest.mark.skipif(not NAMESPACES, reason="only a network of their own can be cut or slow")
Make = Callable[[int], Slice]


@COUNTS
@pytest.mark.parametrize("gone", [0, 1])
def test_a_host_that_is_killed_ends_the_others(
    gone: int, count: int, made: Make, tmp_path: Path, record_property: Record
) -> None:
    processes = made(count).run(long_run(count))
    workers = sampling(processes, tmp_path)
    with timed(record_property, f"host {gone} is killed", hosts(count)):
        processes.pop(gone).kill()
        others = ends(processes)
    for code, _, said in others:
        assert code == 1 and said.count("\n") <= 2 and "is gone" in said and "Traceback" not in said, said
    assert wait_for(lambda: not any(map(alive, workers)))
    kept = Run.load(tmp_path / "run").measurements
    assert kept and all(m.samples_s for m in kept if m.status == "ok")


@NETWORK
@COUNTS
@pytest.mark.parametrize("cut", [0, 1])
def test_a_host_whose_cable_is_pulled_ends_the_others(
    cut: int, count: int, made: Make, record_property: Record
) -> None:
    slice = made(count)
    processes = slice.run(long_run(count))
    assert wait_for(lambda: all(any(map(is_worker, children(process.pid))) for process in processes))
    assert slice.network
    with timed(record_property, f"host {cut} loses its network", hosts(count)):
        slice.network.cut(cut)
        (code, _, said), *others = ends(processes)
    assert code == 1 and re.search(rf"host {cut or r'[1-3]'} \(host\d\) is gone", said), said
    assert all(code == 1 and ("host 0" in answer or "host 1" in answer) for code, _, answer in others), others


@COUNTS
@pytest.mark.parametrize("stopped", [0, 1])
def test_a_host_that_hangs_ends_the_others(
    stopped: int, count: int, made: Make, tmp_path: Path, record_property: Record
) -> None:
    processes = made(count).run(long_run(count))
    sampling(processes, tmp_path)
    hangs = processes.pop(stopped)
    with timed(record_property, f"host {stopped} hangs", hosts(count)):
        for each in (hangs.pid, *children(hangs.pid)):
            os.kill(each, signal.SIGSTOP)
        others = ends(processes)
    kept = Run.load(tmp_path / "run").measurements
    for code, _, said in others:
        assert code == 1 and "Traceback" not in said and f"host {stopped}" in said and "is gone" in said, said
    assert all(m.samples_s for m in kept if m.status == "ok")


@NETWORK
@COUNTS
def test_a_slow_host_is_waited_for(count: int, made: Make, tmp_path: Path, record_property: Record) -> None:
    slice = made(count)
    assert slice.network
    slice.network.slow(1, "4mbit")
    words = [*BENCH, "--target", f"cpu:{count}", "--layout", "contiguous", "--output", "run"]
    with timed(record_property, "host 1 is slow: the whole bench", hosts(count)):
        done = ends(slice.run(words))
    for code, _, said in done:
        assert code == 0, said
    assert {m.status for m in Run.load(tmp_path / "run").measurements} == {"ok"}


@COUNTS
def test_a_host_that_comes_back_completes_the_run(
    count: int, made: Make, tmp_path: Path, record_property: Record
) -> None:
    words = [*BENCH, "--target", f"cpu:{count}", "--seqlen", "1k,2k", "--layout", "contiguous,striped"]
    words += ["--output", "run"]
    processes = made(count).run([*words, "--min-samples", "40", "--time-budget", "20"])
    sampling(processes, tmp_path)
    processes.pop(1).kill()
    assert all(code == 1 for code, *_ in ends(processes))
    before = [str(m.plan) for m in Run.load(tmp_path / "run").measurements if m.status == "ok"]
    with timed(record_property, "host 1 comes back: the resumed bench", hosts(count)):
        done = ends(made(count).run([*words, "--resume"]))
    for code, _, said in done:
        assert code == 0, said
    after = Run.load(tmp_path / "run").measurements
    assert {m.status for m in after} == {"ok"} and len(after) > len(before)
    assert len({(str(m.plan), m.workload.seq_len) for m in after}) == len(after)


def test_a_host_with_another_version_is_refused(made: Make, record_property: Record) -> None:
    slice = made(2)
    first = slice.command(0, long_run(2))
    with timed(record_property, "host 1 has another version", hosts(2)):
        done = ends([first, slice.command(1, long_run(2), OTHER_PROGRAM)])
    for code, _, said in done:
        assert code == 2 and re.search(rf"host 1 \(.*\) has stripectl {OTHER_VERSION}, but host 0 has", said), said
