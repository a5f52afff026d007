"""One command on the nodes of a Ray cluster: a real cluster of two nodes on this machine, a core each."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from stripectl.analysis.recommendation import recommend
from stripectl.cli.ray_connection import connect
from stripectl.errors import BadInput, Missing
from stripectl.results.run import Run
from stripectl.workers.ray_cluster import RayCluster
from stripectl.workers.ray_nodes import SLICE, TOPOLOGY, WORKER
from tests.support.command import EXAMPLES, SMALL
from tests.support.hosts import BENCH, Slice, ends, nobody
from tests.support.ray_nodes import RAY, RayNodes

pytestmark = pytest.mark.ray
TPU = '{"TPU": 4, "TPU-v5e-8-head": 1}', '{"TPU": 4}'


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RayNodes]:
    with ExitStack() as stack:
        nodes = RayNodes(tmp_path)
        stack.callback(nodes.close)
        yield nodes


@pytest.fixture
def two_nodes(cluster: RayNodes) -> RayNodes:
    cluster.add()
    cluster.add()
    return cluster


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> Callable[..., RayCluster]:
    """A cluster's nodes as hosts, in this process."""

    def join(nodes: RayNodes, count: int | None = None) -> RayCluster:
        monkeypatch.setenv("RAY_ADDRESS", nodes.address)
        return RayCluster(connect("ray"), count, nobody)

    return join


@pytest.mark.parametrize("by_client", [False, True], ids=["ray", "ray client"])
def test_a_bench_on_ray_is_the_bench_on_hosts(two_nodes: RayNodes, tmp_path: Path, by_client: bool) -> None:
    words = [*BENCH, "--target", "cpu:2", "--min-samples", "3", "--time-budget", "20", "--output"]
    (code, _, said), *_ = ends([two_nodes.run([*words, "run"], f"ray://{two_nodes.client}" if by_client else "ray")])
    assert code == 0, said
    (tmp_path / "hosts").mkdir()
    with Slice(2, tmp_path / "hosts") as hosts:
        assert [code for code, *_ in ends(hosts.run([*words, "run"]))] == [0, 0]
    ours, theirs = Run.load(tmp_path / "run"), Run.load(tmp_path / "hosts" / "run")
    assert [m.key for m in ours.measurements] == [m.key for m in theirs.measurements]
    assert [m.status for m in ours.measurements] == [m.status for m in theirs.measurements]
    one, other = recommend(ours), recommend(theirs)
    assert one and other
    assert str(one.plan) == str(other.plan) or str(one.plan) in other.ties or str(other.plan) in one.ties
    assert [host["cores"] for host in places(ours)] == [1, 1]


def places(run: Run) -> list[Any]:
    return run.environment["hosts"]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (
            ["--target", "cpu:8"],
            "error: cannot measure cpu:8 because it is not here. Try --method simulated, or --target cpu:2.",
        ),
        (["--num-processes", "5"], "error: the Ray cluster has 2 nodes with CPUs, not 5."),
        (["--process-id", "1"], "error: --cluster cannot be used with --coordinator or --process-id."),
    ],
    ids=["too many devices", "too many nodes", "two ways"],
)
def test_a_cluster_that_is_too_small_is_one_line(two_nodes: RayNodes, words: list[str], line: str) -> None:
    code, shown, said = ends([two_nodes.run([*BENCH, *words])])[0]
    assert code in (2, 3) and said.startswith(line) and said.count("\n") == 1 and not shown, said


def test_no_cluster_is_one_line(cluster: RayNodes) -> None:
    for where in ("ray", f"ray://{cluster.client}", "somewhere"):
        code, _, said = ends([cluster.run(BENCH, where)])[0]
        assert code == 2 and said.startswith("error: cannot join the") and said.count("\n") == 1, said


def test_nodes_in_use_and_other_versions_are_refused(
    two_nodes: RayNodes, joined: Callable[..., RayCluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import ray, sys; ray.init('auto', log_to_driver=False)\n"
            "held = ray.util.placement_group([{'CPU': 1}] * 2, strategy='STRICT_SPREAD')\n"
            "print(held.wait(60), flush=True); sys.stdin.read()",
        ],
        env=two_nodes.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout and holder.stdout.readline() == "True\n"
    monkeypatch.setattr("stripectl.workers.ray_cluster.RESERVE_S", 2.0)
    with (
        pytest.raises(Missing, match=r"cannot reserve 2 Ray nodes .*1 CPU.* other programs use them"),
        joined(two_nodes),
    ):
        pass
    holder.communicate()
    monkeypatch.setattr("stripectl.workers.ray_cluster.RESERVE_S", 60.0)
    monkeypatch.setattr("stripectl.workers.ray_cluster.VERSION", "0.0.9")
    with pytest.raises(BadInput, match=r"host 0 \(Ray node .*\) has stripectl"), joined(two_nodes):
        pass


def test_the_entrypoint_of_a_rayjob_runs_a_bench(two_nodes: RayNodes, tmp_path: Path) -> None:
    job = yaml.safe_load((EXAMPLES / "rayjob.yaml").read_text())["spec"]
    [slice] = job["rayClusterSpec"]["workerGroupSpecs"]
    assert slice["numOfHosts"] == 4
    variables = yaml.safe_load(job["runtimeEnvYAML"])["env_vars"]
    assert set(variables) == {"TARGET", "SEQLEN", "RUN"}
    own = {
        "TARGET": "cpu:2",
        "SEQLEN": "1k",
        "RUN": "run",
        "MORE": SMALL,
        "STRIPECTL": str(RAY.with_name("stripectl")),
    }
    done = subprocess.run(
        ["bash", "-ec", job["entrypoint"]],
        cwd=tmp_path,
        env=two_nodes.environment | own,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert len(places(Run.load(tmp_path / "run"))) == 2


def test_a_tpu_slice_is_reserved_in_the_order_of_its_hosts(
    cluster: RayNodes, joined: Callable[..., RayCluster]
) -> None:
    for worker, resources in enumerate(TPU):
        labels = {SLICE: "slice-a", WORKER: str(1 - worker), TOPOLOGY: "2x4"}
        listed = ",".join(f"{name}={value}" for name, value in labels.items())
        cluster.add(f"--resources={resources}", f"--labels={listed}")
    with joined(cluster) as hosts:
        assert [peer.node.labels[WORKER] for peer in hosts.peers] == ["0", "1"]
        left = hosts.ray.available_resources()
        assert not left.get("TPU") and not left.get("TPU-v5e-8-head"), json.dumps(left)
