"""A node of a Ray cluster dies, hangs, loses its network, comes back, is slow, or has another version.

The nodes are in network namespaces where the machine allows it. The command runs on host 0, the head.
"""

import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from stripectl.core.reason import ReasonKind
from stripectl.results.run import Run
from tests.support.fault_times import BY_RAY, Record, timed
from tests.support.hosts import BENCH, OTHER_PROGRAM, OTHER_VERSION, ends, is_worker, long_run, sampling
from tests.support.network import NAMESPACES, Network
from tests.support.processes import alive, wait_for
from tests.support.ray_nodes import RayNodes, descendants

pytestmark = pytest.mark.ray
NETWORK = pytest.mark.skipif(not NAMESPACES, reason="only a network of their own can be cut or slow")
NEXT = [word for word in long_run(2) if word != "1h"]
NEXT.insert(NEXT.index("--time-budget") + 1, "20")


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[RayNodes]:
    with ExitStack() as stack:
        network = stack.enter_context(Network(2, tmp_path)) if NAMESPACES else None
        nodes = RayNodes(tmp_path, network)
        stack.callback(nodes.close)
        nodes.add()
        nodes.add()
        yield nodes


def started(nodes: RayNodes, where: str = "ray") -> "subprocess.Popen[str]":
    """A long run that has measured its first plan."""
    process = nodes.run(long_run(2), where)
    sampling([process], nodes.folder)
    return process


def says_which(ended: tuple[int, str, str], host: int) -> None:
    code, _, said = ended
    assert code == 1 and said.strip().count("\n") == 0 and "Traceback" not in said, said
    assert re.search(rf"host {host} \(Ray node .*\) is gone", said), said


def keeps_its_results(folder: Path) -> Run:
    """No measurement is lost, and plans without a result have the reason."""
    run = Run.load(folder / "run")
    assert all(m.samples_s for m in run.measurements if m.status == "ok")
    lost = [m for m in run.measurements if m.status != "ok"]
    assert lost and all(m.reason and m.reason.kind == ReasonKind.HOST_LOST for m in lost), run.measurements
    return run


def resumes(nodes: RayNodes, before: Run) -> None:
    code, _, said = ends([nodes.run([*NEXT, "--resume"])])[0]
    after = Run.load(nodes.folder / "run").measurements
    assert code == 0 and {m.status for m in after} == {"ok"}, said
    assert {m.key for m in before.measurements} <= {m.key for m in after}


def test_a_node_that_is_killed_costs_its_plans_and_resume_completes(nodes: RayNodes, record_property: Record) -> None:
    process = started(nodes)
    with timed(record_property, "host 1 is killed", BY_RAY):
        nodes.signal(1, signal.SIGKILL)
        ended = ends([process])[0]
    says_which(ended, 1)
    kept = keeps_its_results(nodes.folder)
    assert wait_for(lambda: nodes.alive() == 1)
    nodes.add(host=1)
    resumes(nodes, kept)


@pytest.mark.parametrize("stopped", [0, 1])
def test_a_node_that_hangs_ends_the_run(stopped: int, nodes: RayNodes, record_property: Record) -> None:
    process = started(nodes)
    with timed(record_property, f"host {stopped} hangs", BY_RAY):
        nodes.signal(stopped, signal.SIGSTOP)
        ended = ends([process])[0]
    says_which(ended, stopped)
    keeps_its_results(nodes.folder)


@pytest.mark.parametrize("by_client", [False, True], ids=["ray", "ray client"])
def test_a_head_that_is_killed_ends_the_run(nodes: RayNodes, by_client: bool, record_property: Record) -> None:
    process = started(nodes, f"ray://{nodes.client}" if by_client else "ray")
    with timed(record_property, f"host 0 is killed{', with `ray://`' if by_client else ''}", BY_RAY):
        nodes.signal(0, signal.SIGKILL)
        ended = ends([process])[0]
    if by_client:  # the client loses both nodes, and Ray adds a line
        assert ended[0] == 1 and re.search(r"host \d \(Ray node .*\) is gone", ended[2]), ended[2]
    else:
        says_which(ended, 0)
    keeps_its_results(nodes.folder)


@NETWORK
def test_a_node_whose_cable_is_pulled_ends_the_run_and_resume_completes(
    nodes: RayNodes, record_property: Record
) -> None:
    assert nodes.network
    process = started(nodes)
    with timed(record_property, "host 1 loses its network", BY_RAY):
        nodes.network.cut(1)
        ended = ends([process])[0]
    says_which(ended, 1)
    kept = keeps_its_results(nodes.folder)
    assert wait_for(lambda: nodes.alive() == 1)
    nodes.network.join(1)
    assert nodes.started[1].wait(240)  # Ray ends a node that it has declared dead, so it is started anew
    nodes.add(host=1)
    with timed(record_property, "host 1 comes back: the resumed bench", BY_RAY):
        resumes(nodes, kept)


@NETWORK
def test_a_head_whose_cable_is_pulled_ends_the_run(nodes: RayNodes, record_property: Record) -> None:
    assert nodes.network
    process = started(nodes)
    with timed(record_property, "host 0 loses its network", BY_RAY):
        nodes.network.cut(0)
        code, _, said = ends([process])[0]
    assert code == 1 and re.search(r"host \d \(Ray node .*\) is gone", said) and "Traceback" not in said, said
    keeps_its_results(nodes.folder)


@NETWORK
def test_a_slow_node_is_waited_for(nodes: RayNodes, tmp_path: Path, record_property: Record) -> None:
    assert nodes.network
    nodes.network.slow(1, "4mbit")
    words = [*BENCH, "--target", "cpu:2", "--layout", "contiguous", "--output", "run"]
    with timed(record_property, "host 1 is slow: the whole bench", BY_RAY):
        code, _, said = ends([nodes.run(words)])[0]
    assert code == 0, said
    assert {m.status for m in Run.load(tmp_path / "run").measurements} == {"ok"}


def test_nodes_with_another_version_are_refused(nodes: RayNodes, record_property: Record) -> None:
    with timed(record_property, "host 1 has another version", BY_RAY):
        code, _, said = ends([nodes.run(BENCH, program=OTHER_PROGRAM)])[0]
    assert code == 2 and re.search(rf"host 0 \(Ray node .*\) has stripectl .*, but host 0 has {OTHER_VERSION}", said)


def test_workers_end_with_the_command_that_is_killed(nodes: RayNodes) -> None:
    process = started(nodes)
    workers = [pid for node in nodes.started for pid in descendants(node.pid) if is_worker(pid)]
    assert len(workers) >= 2
    process.kill()
    process.communicate()
    assert wait_for(lambda: not any(map(alive, workers)))
