"""One command on several hosts: real processes, in network namespaces where the machine allows it."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from stripectl.cli.multihost import find_hosts
from stripectl.errors import BadInput, Missing
from stripectl.results.environment import cores, differing_parts
from stripectl.results.run import Run
from stripectl.workers import links
from stripectl.workers.coordinator import Coordinator
from stripectl.workers.follower import follow
from stripectl.workers.hosts import COMPARED, HostFacts, HostLost, Hosts, free_address, loopback_note
from stripectl.workers.secret import proof
from stripectl.workers.worker_group import WorkerError, WorkerGroup
from tests.support.factories import SMALL
from tests.support.hosts import BENCH, SECRET, ends, nobody
from tests.support.network import NAMESPACES
from tests.support.processes import alive, wait_for


@pytest.mark.hosts
@pytest.mark.parametrize("count", [2, 4])
def test_hosts_run_the_same_plans_and_say_the_same(count: int, made, tmp_path: Path) -> None:
    hosts = made(count)
    words = [*BENCH, "--target", f"cpu:{count}", "--output", "run", *(["--profile"] if count == 2 else [])]
    (code, shown, said), *others = ends(hosts.run(words))
    assert code == 0, said
    run = Run.load(tmp_path / "run")
    ring = [m for m in run.measurements if m.devices == count]
    assert [str(m.plan).split("/")[1] for m in ring] == ["contiguous", "striped", "zigzag"]
    assert all(m.status == "ok" and len(m.samples_s) >= 3 for m in run.measurements)
    assert len(run.environment["hosts"]) == count
    if NAMESPACES:
        assert [host["name"] for host in run.environment["hosts"]] == [f"host{host}" for host in range(count)]
    for m in ring if count == 2 else ():
        profiles = (tmp_path / "run" / m.profile.profile).rglob("*.xplane.pb")  # type: ignore
        assert sorted(path.name for path in profiles) == ["process0.xplane.pb", "process1.xplane.pb"]
        assert m.overlap and len(m.profile.devices) == 2  # type: ignore
    best = next(line.split()[1] for line in shown.splitlines() if line.startswith("  plan"))
    address = hosts.coordinator.rpartition(":")[0]
    for host, (code, nothing, said) in enumerate(others, 1):
        assert (code, nothing) == (0, "")
        assert said == f"host {host} of {count} done: recommended {best}; the results are on host 0, {address}.\n"
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "hosts") == ["run"]


STRANGERS = """
import asyncio, contextlib, socket, sys
import grpc.aio
from stripectl.workers import links

async def visit(method, *contents):
    async with grpc.aio.insecure_channel(sys.argv[1]) as channel:
        call = channel.stream_stream(method)(wait_for_ready=True)
        with contextlib.suppress(ConnectionError):
            for content in contents:
                await links.put(call, content) if content else await call.read()
        while await links.next_message(call) is not None:
            pass
        assert await call.code() is not grpc.StatusCode.OK

async def visits():
    await visit(links.FOLLOW, b"no secret")
    await visit(links.FOLLOW, bytes(32), b"", links.proof(b"a wrong secret of a stranger", links.FOLLOWER, bytes(64)))
    await visit(links.FOLLOW, bytes(32), b"", bytes.fromhex(sys.argv[2]))
    await visit(links.FOLLOW, bytes(2**30))
    await visit("/stripectl.Hosts/Run")

asyncio.run(asyncio.wait_for(visits(), 120))
host, _, port = sys.argv[1].rpartition(":")
for words in (b"GET / HTTP/1.1", bytes(2**20)):
    with contextlib.suppress(OSError), socket.create_connection((host, int(port)), 5) as stranger:
        stranger.sendall(words)
        stranger.recv(100)
"""


@pytest.mark.hosts
def test_strangers_are_refused_in_a_line_each_and_the_run_continues(made, tmp_path: Path) -> None:
    hosts = made(2)
    words = [*BENCH, "--target", "cpu:2", "--output", "run"]
    first = hosts.command(0, words)
    within = hosts.network.within(1) if hosts.network else []
    replayed = proof(SECRET.encode(), links.FOLLOWER, bytes(64))  # it was right for the nonces of another connection
    command = [*within, sys.executable, "-c", STRANGERS, hosts.coordinator, replayed.hex()]
    strangers = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert strangers.returncode == 0, strangers.stderr
    (code, _, said), (other, *_) = ends([first, hosts.command(1, words)])
    assert code == other == 0 and "Traceback" not in said, said
    refused = [line for line in said.splitlines() if "refused a connection from" in line]
    reasons = [line.rpartition(" because ")[2] for line in refused]
    assert reasons == [
        "it did not begin with the handshake of this run",
        "it does not know the secret of this run",
        "it does not know the secret of this run",
        "it closed the connection before it proved that it knows the secret",
        "it asked for an unknown method",
    ]


@pytest.fixture
def pair() -> Iterator[Coordinator]:
    """This process as host 0 and a thread of it as host 1, whose workers are real processes."""
    address = free_address("127.0.0.1")
    here = HostFacts("zero", cores()[:1], {}, {}, {})
    with Coordinator(Hosts(address, 2, 0), print, here) as cluster:
        told: list = []

        def other() -> None:
            try:
                told.append(follow(Hosts(address, 2, 1), nobody))
            except HostLost as lost:
                told.append(lost)

        thread = threading.Thread(target=other)
        thread.start()
        cluster.gather(nobody, 60)
        yield cluster
        cluster.done(7, "over")
        thread.join(30)
        assert not thread.is_alive()
        assert isinstance(told[0], HostLost) or (told[0].code, told[0].reason) == (7, "over")


@pytest.mark.hosts
def test_a_set_has_workers_on_both_hosts(pair: Coordinator) -> None:
    with WorkerGroup(2, cluster=pair) as devices:
        assert devices.on_hosts == [1, 1]
        assert [each["count"] for each in devices.ask("devices")] == [2, 2]
        prepare = {"workload": SMALL.to_json(), "warmup": 1, "flags": {}}
        both = devices.ask("prepare", key="ring", plan="ring/striped/xla@ring=2,tile=128", **prepare)
        assert all(each["check"]["max_rel_error"] <= each["check"]["tolerance"] for each in both)
        here, idle = devices.ask("prepare", key="one", plan="ring/contiguous/xla@ring=1,tile=128", **prepare)
        assert here["check"] and idle["check"] is None
        assert min(each["seconds"] for each in devices.ask("sample", key="ring")) > 0
        assert len(devices.ask("sample", key="one")) == 2


@pytest.mark.hosts
def test_a_worker_that_is_killed_elsewhere_costs_its_plan_only(pair: Coordinator) -> None:
    with WorkerGroup(2, cluster=pair) as devices:
        devices.ask("devices")
        of_threads = [Path(f"/proc/self/task/{thread.native_id}/children") for thread in threading.enumerate()]
        before = {int(each) for path in of_threads for each in path.read_text().split() if alive(int(each))}
        away = next(each for each in before if each != devices.workers[0].process.pid)  # type: ignore
        os.kill(away, signal.SIGKILL)
        with pytest.raises(WorkerError, match=r"process 1 on host 1 \(.*\) was killed by SIGKILL"):
            devices.ask("devices")
        assert wait_for(lambda: not any(map(alive, before)))
        assert len(devices.ask("devices")) == 2


@pytest.mark.hosts
def test_a_host_that_is_lost_is_named_at_the_next_request(pair: Coordinator) -> None:
    with WorkerGroup(2, cluster=pair) as devices:
        devices.ask("devices")
        pair.peers[0].ends[1].close()
        with pytest.raises(HostLost, match=r"host 1 \(.*\) is gone"):
            devices.ask("devices")
        assert not devices.workers


def test_hosts_that_do_not_come_are_named() -> None:
    absent = pytest.raises(Missing, match="host 1, 2 of 3 did not connect")
    with Coordinator(Hosts(free_address("127.0.0.1"), 3, 0), print) as cluster, absent:
        cluster.gather(nobody, 0.1)
    with pytest.raises(Missing, match="host 0 does not answer"):
        follow(Hosts(free_address("127.0.0.1"), 3, 1), nobody, 0.1)


def test_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    old = replace(HostFacts.here(), stripectl="0.0.9")
    monkeypatch.setattr("stripectl.workers.follower.HostFacts.here", lambda: old)
    address, said = free_address("127.0.0.1"), []

    def other() -> None:
        with pytest.raises(BadInput) as refused:
            follow(Hosts(address, 2, 1), nobody)
        said.append(str(refused.value))

    with Coordinator(Hosts(address, 2, 0), print) as cluster:
        thread = threading.Thread(target=other)
        thread.start()
        with pytest.raises(BadInput, match=r"has stripectl 0\.0\.9, but host 0 has"):
            cluster.gather(nobody, 60)
        thread.join(30)
    assert "Install the same" in said[0]


@pytest.mark.parametrize(
    ("around", "coordinator"),
    [
        (
            {"SLURM_JOB_ID": "7", "SLURM_STEP_NODELIST": "node[07-09]", "SLURM_NTASKS": "3", "SLURM_PROCID": "1"}
            | {"SLURM_LOCALID": "0"},
            "node07:61447",
        ),
        (
            {"OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://10.96.0.1,10.148.0.1:34911", "OMPI_COMM_WORLD_SIZE": "3"}
            | {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_LOCAL_RANK": "0"},
            "10.96.0.1:62624",
        ),
    ],
    ids=["slurm", "ompi"],
)
def test_clusters_say_which_hosts_there_are(around: dict, coordinator: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in around.items():
        monkeypatch.setenv(name, value)
    assert find_hosts(None, None, None) == Hosts(coordinator, 3, 1)
    assert find_hosts(None, 1, None) is None
    monkeypatch.setenv("SLURM_NTASKS", "1")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "1")
    assert find_hosts(None, None, None) is None


def test_hosts_are_named_whole() -> None:
    assert find_hosts("10.0.0.1:80", 2, 1) == Hosts("10.0.0.1:80", 2, 1)
    with pytest.raises(BadInput, match="given together"):
        find_hosts("10.0.0.1:80", 2, None)


def test_differences_between_hosts_are_named() -> None:
    ours = {"versions": {"jaxlib": "0.10.2"}, "flags": {}, "host": {"cores": 8}}
    theirs = {"versions": {"jaxlib": "0.10.1"}, "flags": {"XLA_FLAGS": "--x"}, "host": {"cores": 8}}
    assert list(differing_parts(ours, theirs, COMPARED)) == [
        ("jaxlib", "0.10.2", "0.10.1"),
        ("XLA_FLAGS", "none", "--x"),
    ]


@pytest.mark.parametrize("coordinator", ["nowhere", "host:", "host:0", "host:99999", ":80"])
def test_an_address_is_checked(coordinator: str) -> None:
    with pytest.raises(BadInput, match="ADDRESS:PORT"):
        Hosts(coordinator, 2, 0)


def test_a_name_that_is_a_loopback_address_is_noted() -> None:
    """As Debian writes a host's own name into /etc/hosts; where all hosts are on one machine it is right."""
    elsewhere, here = Hosts("192.0.2.1:8476", 2, 1), Hosts("127.0.0.1:8476", 2, 1)
    said = loopback_note(elsewhere, "localhost")
    assert said and "localhost, resolves to 127.0.0.1, which other hosts cannot reach" in said
    assert loopback_note(here, "localhost") is None
    assert loopback_note(elsewhere, "no-such-name.invalid") is None


def test_a_host_beyond_the_last_is_refused() -> None:
    with pytest.raises(BadInput, match="Hosts have the numbers 0 to 1"):
        Hosts("host:80", 2, 2)


def test_an_address_may_be_of_version_6() -> None:
    assert Hosts("[fe80::1]:80", 2, 0).address == ("fe80::1", 80)
