"""One command on the nodes of a Ray cluster: a real cluster of two nodes on this machine, a core each."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from stripectl.analysis.recommendation import recommend
from stripectl.cli.ray_connection import connect
from stripectl.errors import BadInput, Missing
from stripectl.results.environment import cores
from stripectl.results.run import Run
from stripectl.workers.hosts import LOST, free_address
from stripectl.workers.ray_cluster import SLICE, TOPOLOGY, WORKER, RayCluster
from tests.integration.test_ci_examples import EXAMPLES, SMALL
from tests.integration.test_hosts import BENCH, Slice, ends, long_run, nobody
from tests.robustness.test_faults import alive, children, wait_for

pytestmark = pytest.mark.ray
PROGRAM = Path(sys.executable).with_name("ray")
TPU = '{"TPU": 4, "TPU-v5e-8-head": 1}', '{"TPU": 4}'


def descendants(pid: int) -> list[int]:
    """Children of all threads, and theirs."""
    found = (children(pid, int(thread.name)) for thread in Path(f"/proc/{pid}/task").glob("*"))
    return [each for of_thread in found for child in of_thread for each in [child, *descendants(child)]]


@dataclass
class RayNodes:
    """Nodes of a cluster on this machine, as processes that `ray start --block` keeps."""

    folder: Path
    address: str = field(default_factory=lambda: free_address("127.0.0.1"))
    client: str = field(default_factory=lambda: free_address("127.0.0.1"))
    started: list["subprocess.Popen[bytes]"] = field(default_factory=list)
    sockets: tempfile.TemporaryDirectory[str] = field(  # Linux limits the path of a socket to 107 bytes
        default_factory=lambda: tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True)
    )

    def add(self, *words: str) -> None:
        """Start a node, the first of which is the head, and wait until it has joined."""
        first, count = not self.started, len(self.started)
        port, client = self.address.rpartition(":")[2], self.client.rpartition(":")[2]
        place = ["--head", f"--port={port}", "--include-dashboard=false", f"--ray-client-server-port={client}"]
        place += [f"--temp-dir={self.sockets.name}"]
        core = cores()[count % len(cores())]
        command = ["taskset", "-c", str(core), PROGRAM, "start", *(place if first else [f"--address={self.address}"])]
        with (self.folder / f"node{count}.log").open("wb") as log:
            self.started.append(
                subprocess.Popen(
                    [*command, "--num-cpus=1", "--block", "--disable-usage-stats", *words],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )
        running = sum(process.poll() is None for process in self.started)
        joined = wait_for(lambda: self.started[-1].poll() is not None or self.alive() == running, 120)
        assert joined and self.started[-1].poll() is None, (self.folder / f"node{count}.log").read_text()

    def alive(self) -> int:
        """The number of nodes that have joined and not left."""
        asks = "import ray; ray.init('auto', log_to_driver=False); print(sum(each['Alive'] for each in ray.nodes()))"
        done = subprocess.run(
            [sys.executable, "-c", asks], capture_output=True, text=True, env=self.environment, timeout=60
        )
        return int((done.stdout.split() or [0])[0])  # Ray may add lines about its nodes

    @property
    def environment(self) -> dict[str, str]:
        return os.environ | {"RAY_ADDRESS": self.address}

    def signal(self, node: int, number: int) -> None:
        pid = self.started[node].pid
        for each in [pid, *descendants(pid)]:
            os.kill(each, number)

    def run(self, words: Sequence[str], where: str = "ray") -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, "-m", "stripectl", *words, "--cluster", where],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def close(self) -> None:
        for node, process in reversed(list(enumerate(self.started))):
            if process.poll() is None:
                self.signal(node, signal.SIGKILL)
            process.wait()
        self.sockets.cleanup()


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


def sampled(process: "subprocess.Popen[str]", folder: Path) -> None:
    assert wait_for(lambda: (folder / "run" / "run.json").exists() or process.poll() is not None, 180)
    assert process.poll() is None, process.communicate()


@pytest.mark.parametrize("by_client", [False, True], ids=["ray", "ray client"])
def test_a_bench_on_ray_is_the_bench_on_hosts(two_nodes: RayNodes, tmp_path: Path, by_client: bool) -> None:
    words = [*BENCH, "--target", "cpu:2", "--min-samples", "3", "--time-budget", "20", "--output"]
    (code, _, said), *_ = ends([two_nodes.run([*words, "run"], f"ray://{two_nodes.client}" if by_client else "ray")])
    assert code == 0, said
    hosts = Slice(2, tmp_path / "hosts")
    hosts.folder.mkdir()
    try:
        hosts.connect()
        assert [code for code, *_ in ends(hosts.run([*words, "run"]))] == [0, 0]
    finally:
        hosts.close()
    ours, theirs = Run.load(tmp_path / "run"), Run.load(tmp_path / "hosts" / "run")
    assert [m.key for m in ours.measurements] == [m.key for m in theirs.measurements]
    assert [m.status for m in ours.measurements] == [m.status for m in theirs.measurements]
    one, other = recommend(ours), recommend(theirs)
    assert one and other
    assert str(one.plan) == str(other.plan) or str(one.plan) in other.ties or str(other.plan) in one.ties
    assert [host["cores"] for host in places(ours)] == [1, 1]


def places(run: Run) -> list[Any]:
    return run.environment["hosts"]


def test_a_node_that_is_killed_costs_its_plans_and_resume_completes(two_nodes: RayNodes, tmp_path: Path) -> None:
    process = two_nodes.run(long_run(2))
    sampled(process, tmp_path)
    two_nodes.signal(1, signal.SIGKILL)
    code, _, said = ends([process])[0]
    assert code == 1 and re.search(r"host \d \(Ray node .*\) is gone", said) and "Traceback" not in said, said
    kept = Run.load(tmp_path / "run").measurements
    assert all(m.samples_s for m in kept if m.status == "ok")
    lost = [m for m in kept if m.status != "ok"]
    assert lost and all(str(m.reason).startswith(LOST) for m in lost), kept
    assert wait_for(lambda: two_nodes.alive() == 1)
    two_nodes.add()
    words = [word for word in long_run(2) if word != "1h"]
    words.insert(words.index("--time-budget") + 1, "20")
    code, _, said = ends([two_nodes.run([*words, "--resume"])])[0]
    after = Run.load(tmp_path / "run").measurements
    assert code == 0 and {m.status for m in after} == {"ok"}, said
    assert {m.key for m in kept} <= {m.key for m in after}


def test_a_node_that_hangs_ends_the_run(two_nodes: RayNodes, tmp_path: Path) -> None:
    process = two_nodes.run(long_run(2))
    sampled(process, tmp_path)
    two_nodes.signal(1, signal.SIGSTOP)
    begun = time.monotonic()
    code, _, said = ends([process])[0]
    print(f"a node hangs: the run ended after {time.monotonic() - begun:.0f} s")
    assert code == 1 and re.search(r"host \d \(Ray node .*\) is gone", said) and "Traceback" not in said, said


def test_workers_end_with_the_command_that_is_killed(two_nodes: RayNodes, tmp_path: Path) -> None:
    process = two_nodes.run(long_run(2))
    sampled(process, tmp_path)
    workers = [pid for node in two_nodes.started for pid in descendants(node.pid) if is_worker(pid)]
    assert len(workers) >= 2
    process.kill()
    process.communicate()
    assert wait_for(lambda: not any(map(alive, workers)))


def is_worker(pid: int) -> bool:
    return b"stripectl.cli.worker" in Path(f"/proc/{pid}/cmdline").read_bytes()


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
        "STRIPECTL": str(PROGRAM.with_name("stripectl")),
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
