"""Real processes on two pinned cores: what is measured, and what a death or an interrupt costs."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from stripectl.core.layer_groups import LayerGroup
from stripectl.core.plan import parse_plan
from stripectl.measure.local_target import local_target
from stripectl.measure.local_workers import LocalWorkers
from stripectl.measure.machine_timings import MachineTimings
from stripectl.measure.plan_costs import plan_costs
from stripectl.measure.sampler import SamplingOptions
from stripectl.results.backend import DevicesFound, Event, finals
from stripectl.results.environment import cores
from stripectl.results.measurement_set import indexed
from stripectl.results.run import Run, newest_run
from stripectl.runner.bench import bench
from stripectl.util.progress import quiet
from stripectl.workers.process import Process
from stripectl.workers.worker_group import WorkerError, WorkerGroup
from tests.support.factories import PLANS, SMALL, request_of
from tests.support.processes import alive, children, wait_for

pytestmark = pytest.mark.skipif(len(cores()) < 2, reason="a ring of pinned processes needs two cores")


@pytest.mark.faults
def test_three_layouts_are_measured_and_checked() -> None:
    found = finals(bench(request_of(), quiet))
    *ring, alone = found
    assert [str(m.plan).split("/")[1] for m in ring] == ["contiguous", "striped", "zigzag"]
    assert alone.devices == 1 and str(alone.target) == "cpu:1"
    assert all(indexed(found).over_one_device(m) for m in ring)
    for m in found:
        assert m.status == "ok", m.reason
        assert len(m.samples_s) >= 3 and m.median_s and m.method == "measured"
        assert m.check and m.check.max_rel_error <= m.check.tolerance == 2e-6
        assert m.bytes == ({"collective-permute": 2 * 1024 * 16 * 4} if m.devices > 1 else {})
        assert m.compile_s and m.peak_bytes and m.ci95_s


def pids_of(devices: WorkerGroup) -> list[int]:
    return [worker.process.pid for worker in devices.workers if isinstance(worker, Process)]


def test_workers_are_pinned_to_a_core_each() -> None:
    with WorkerGroup(2) as devices:
        devices.ask("devices")
        pinned = [os.sched_getaffinity(pid) for pid in pids_of(devices)]
    assert [len(each) for each in pinned] == [1, 1]
    assert pinned[0] != pinned[1]


@pytest.mark.faults
def test_a_killed_worker_costs_its_plan_only() -> None:
    killed: list[int] = []

    def kill_once(now: str, done: int, total: int) -> None:
        if not killed and now.startswith("sample 2 of ring/striped"):
            killed.append(children(os.getpid())[-1])
            os.kill(killed[0], signal.SIGKILL)

    found = {str(m.plan).split("/")[1]: m for m in finals(bench(request_of(), kill_once)) if m.devices > 1}
    assert killed
    assert found["striped"].status == "failed" and "SIGKILL" in str(found["striped"].reason)
    assert found["contiguous"].status == found["zigzag"].status == "ok"
    assert min(len(found[name].samples_s) for name in ("contiguous", "zigzag")) >= 3


def test_a_plan_that_raises_leaves_the_workers_alive() -> None:
    with WorkerGroup(2) as devices:
        with pytest.raises(WorkerError, match="unknown scheme") as failure:
            devices.ask("prepare", key="0", workload=SMALL.to_json(), plan="nonsense@ring=2", warmup=1, flags={})
        assert failure.value.group_alive and failure.value.unsupported
        assert len(devices.ask("devices")) == 2
        assert devices.starts == 1


@pytest.mark.faults
def test_a_death_while_another_is_prepared_costs_only_its_plan() -> None:
    killed: list[int] = []

    def kill_once(now: str, done: int, total: int) -> None:
        if not killed and now.startswith("check and compile ring/zigzag"):
            killed.append(children(os.getpid())[-1])
            os.kill(killed[0], signal.SIGKILL)

    found = {str(m.plan).split("/")[1]: m for m in finals(bench(request_of(), kill_once)) if m.devices > 1}
    assert killed
    assert found["zigzag"].status == "failed"
    assert found["contiguous"].status == found["striped"].status == "ok"


@pytest.mark.faults
def test_a_request_past_its_limit_is_ended() -> None:
    with WorkerGroup(2) as devices:
        devices.ask("devices")
        pids = pids_of(devices)
        with pytest.raises(WorkerError, match=r"took longer than its limit of 0\.001 s") as failure:
            devices.ask("time_matmul", 0.001, dtype="float32")
        assert failure.value.timed_out and not failure.value.unsupported
        assert not any(map(alive, pids))
        assert len(devices.ask("devices")) == 2
        assert devices.starts == 2


@pytest.fixture
def long_bench(tmp_path: Path) -> Iterator["subprocess.Popen[str]"]:
    """A bench that would sample for minutes, in a process of its own."""
    shape = ["--seqlen", "2k", "--heads", "1", "--head-dim", "16", "--tile", "128", "--pass", "forward"]
    effort = ["--time-budget", "10m", "--min-samples", "10000"]
    process = subprocess.Popen(
        [sys.executable, "-m", "stripectl", "bench", "--target", "cpu:2", "--method", "measured", *shape, *effort],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    yield process
    process.kill()
    process.communicate()


def wait_for_samples(process: "subprocess.Popen[str]") -> None:
    assert process.stderr
    said = 0
    for line in process.stderr:
        said += line.startswith("sample")
        if said == 2:  # so that every plan has at least one
            return
    raise AssertionError("the bench ended before it sampled")


@pytest.mark.faults
def test_an_interrupt_keeps_what_was_measured(long_bench: "subprocess.Popen[str]", tmp_path: Path) -> None:
    wait_for_samples(long_bench)
    workers = children(long_bench.pid)
    long_bench.send_signal(signal.SIGINT)
    shown, said = long_bench.communicate(timeout=240)
    assert long_bench.returncode == 130
    assert "Traceback" not in said and "interrupted" in said
    assert len(workers) == 2 and wait_for(lambda: not any(map(alive, workers)))
    path = newest_run(tmp_path / "stripectl-runs")
    assert str(path.relative_to(tmp_path)) in shown
    measured = Run.load(path).measurements
    assert len(measured) == 3
    assert all(m.status == "ok" and m.samples_s and m.median_s for m in measured)
    report = [sys.executable, "-m", "stripectl", "report", str(path), "--no-open", "-o", str(tmp_path / "again.html")]
    assert subprocess.run(report, capture_output=True).returncode == 0
    assert json.loads(path.read_text())["schema"] == "stripectl.run/3"


@pytest.mark.faults
def test_a_plan_that_compiles_too_long_is_told_what_gives_it_more(monkeypatch) -> None:
    monkeypatch.setattr("stripectl.workers.worker_group.START_S", 0.0)
    effort = SamplingOptions(budget_s=60, min_samples=3, compile_timeout_s=0.01)
    found = finals(bench(request_of(plans=PLANS[:1], sampling=effort), quiet))
    assert {m.status for m in found} == {"failed"}
    assert all("Try a longer --compile-timeout" in str(m.reason) for m in found)


@pytest.mark.faults
def test_a_killed_parent_leaves_no_worker(long_bench: "subprocess.Popen[str]") -> None:
    wait_for_samples(long_bench)
    workers = children(long_bench.pid)
    assert len(workers) == 2 and all(map(alive, workers))
    long_bench.kill()
    assert wait_for(lambda: not any(map(alive, workers)))


@pytest.mark.hosts
def test_a_cpu_that_is_only_looked_at_is_no_event_and_leaves_no_worker() -> None:
    found = list[Event]()
    with LocalWorkers(quiet, tell=found.append) as workers:
        place = local_target("local", None, workers)
        assert place.processes == place.here > 0 and place.device_kind is None
        assert not found and not workers.groups


@pytest.mark.hosts
@pytest.mark.usefixtures("users_compiler")
def test_tiles_and_hops_are_timed_and_simulated_from() -> None:
    plan = parse_plan("ring/striped/xla@ring=2,tile=512")
    found = list[Event]()
    with LocalWorkers(quiet, tell=found.append) as workers:
        place = local_target("cpu:2", None, workers)
        timings, both = MachineTimings(workers), replace(SMALL, passes="forward-backward")
        machine = plan_costs(LayerGroup(1, both, plan), place, timings)
        assert plan_costs(LayerGroup(1, SMALL, plan), place, timings).cost_source.by_pass.keys() == {"forward"}
        groups = [each for event in found if isinstance(event, DevicesFound) for each in event.devices]
        assert [(each.processes, each.count) for each in groups] == [(2, 2)]
    assert machine.cost_source.source == "measured_tile" and not machine.overlaps
    assert machine.forward.whole_s > 0 and machine.backward.whole_s > machine.forward.whole_s
    assert machine.link_bytes_per_s_one_way > 1e6
    timed = machine.cost_source.forward
    assert timed and timed.held_out


@pytest.mark.hosts
def test_a_flag_that_the_compiler_does_not_know_is_refused() -> None:
    flags = ({"xla_cpu_enable_fast_mth": "true"},)
    found = finals(bench(request_of(plans=PLANS[:1], flags=flags), quiet))
    assert {m.status for m in found} == {"refused"}
    assert all("does not know the flag 'xla_cpu_enable_fast_mth'" in str(m.reason) for m in found)
