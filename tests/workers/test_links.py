"""Strangers that connect to host 0 are refused in one line each, and the run continues. The connections are real."""

import asyncio
import contextlib
import resource
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from stripectl.errors import BadInput, Missing
from stripectl.results.environment import VERSION
from stripectl.workers import links, messages
from stripectl.workers.coordinator import Coordinator
from stripectl.workers.follower import follow
from stripectl.workers.hosts import Hosts, free_address
from stripectl.workers.messages import Done, Greeting
from stripectl.workers.secret import TOKEN, Unauthentic

SECRET = "the secret of this test"
# 127.0.0.1, ::ffff:127.0.0.1 and ::1 in /proc/net
LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}
GREETING = Greeting(1, 2, VERSION, "one", [0], {}, {}, {})


@pytest.fixture
def warned(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv(TOKEN, SECRET)
    return []


@pytest.fixture
def cluster(warned: list[str]) -> Iterator[Coordinator]:
    with Coordinator(Hosts(free_address("127.0.0.1"), 2, 0), warned.append) as found:
        yield found


def visit(cluster: Coordinator, do: Callable[[Any], Coroutine[Any, Any, Any]], method: str = links.FOLLOW) -> Any:
    """What a visitor of host 0 gets: do(call) on a stream of its own."""

    async def visitor() -> Any:
        async with grpc.aio.insecure_channel(cluster.hosts.coordinator) as channel:
            return await do(channel.stream_stream(method)())

    return asyncio.run(asyncio.wait_for(visitor(), 60))


async def push(call: Any, content: bytes) -> None:
    """Host 0 may have closed the connection before this arrives."""
    with contextlib.suppress(ConnectionError):
        await links.put(call, content)


async def status(call: Any) -> grpc.StatusCode:
    while await links.next_message(call) is not None:
        pass
    return await call.code()


def says(*contents: bytes) -> Callable[[Any], Coroutine[Any, Any, grpc.StatusCode]]:
    async def do(call: Any) -> grpc.StatusCode:
        for content in contents:
            await push(call, content)
        return await status(call)

    return do


def joins(cluster: Coordinator) -> None:
    """The right host still gets in."""
    ended: list[Done] = []
    hosts = Hosts(cluster.hosts.coordinator, 2, 1)
    thread = threading.Thread(target=lambda: ended.append(follow(hosts, lambda *_: None)))
    thread.start()
    cluster.gather(lambda *_: None, 60)
    cluster.done(0, "")
    thread.join(30)
    assert ended == [Done(0, "", None)]


async def with_another_secret(call: Any) -> grpc.StatusCode:
    with pytest.raises(Unauthentic, match="does not know the secret"):
        await links.join(call, b"another secret")
    await call.done_writing()
    return await status(call)


async def with_a_replayed_proof(call: Any) -> grpc.StatusCode:
    """The answer of another connection: its nonces were others."""
    await push(call, bytes(32))
    await call.read()
    await push(call, b"\x5a" * 32)
    return await status(call)


async def with_host_0s_own_proof(call: Any) -> grpc.StatusCode:
    await push(call, bytes(32))
    answer = await call.read()
    await push(call, answer[32:])
    return await status(call)


@pytest.mark.parametrize(
    ("stranger", "line"),
    [
        (says(b"GET / HTTP/1.1"), "did not begin with the handshake"),
        (says(b""), "did not begin with the handshake"),
        (says(bytes(32), b"no proof"), "did not begin with the handshake"),
        (with_another_secret, "closed the connection before it proved that it knows the secret"),
        (with_a_replayed_proof, "does not know the secret of this run"),
        (with_host_0s_own_proof, "does not know the secret of this run"),
        (says(bytes(2**20)), "closed the connection"),
    ],
    ids=["other words", "nothing", "no proof", "another secret", "replayed", "reflected", "1 MiB"],
)
def test_a_stranger_is_turned_away_in_one_line(
    cluster: Coordinator, warned: list[str], stranger: Any, line: str
) -> None:
    assert visit(cluster, stranger) is not grpc.StatusCode.OK
    joins(cluster)
    assert len(warned) == 1 and line in warned[0] and warned[0].startswith("refused a connection from ")
    assert "\n" not in warned[0]


def test_an_unknown_request_is_refused_in_one_line(cluster: Coordinator, warned: list[str]) -> None:
    code = visit(cluster, status, "/stripectl.Hosts/Run")
    assert code is grpc.StatusCode.UNIMPLEMENTED
    joins(cluster)
    assert len(warned) == 1 and "it asked for an unknown method" in warned[0]


@pytest.mark.hosts
def test_a_message_of_1_gib_is_refused_in_one_line(cluster: Coordinator, warned: list[str]) -> None:
    assert visit(cluster, says(bytes(2**30))) is not grpc.StatusCode.OK
    joins(cluster)
    assert len(warned) == 1 and "closed the connection" in warned[0]


def test_a_silent_stranger_blocks_nobody(
    cluster: Coordinator, warned: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def waits(call: Any) -> grpc.StatusCode:
        await asyncio.to_thread(joins, cluster)
        return await status(call)

    monkeypatch.setattr(links, "HANDSHAKE_S", 3.0)
    assert visit(cluster, waits) is grpc.StatusCode.UNAUTHENTICATED
    assert len(warned) == 1 and "silent for 3 s" in warned[0]


@pytest.mark.hosts
def test_5000_idle_connections_disturb_nobody(
    cluster: Coordinator, warned: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    """They need more open files than a process usually may have; after a while host 0 closes them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert soft == hard  # host 0 has raised it
    if hard < 12_000:
        pytest.skip(f"both ends of 5,000 connections need more than the {hard} files that this process may open")
    address = cluster.hosts.address
    idle = [socket.create_connection(address) for _ in range(5000)]
    try:
        joins(cluster)
        assert warned == []
        idle[0].settimeout(60)
        while idle[0].recv(2**16):  # its settings, then the end
            pass
    finally:
        for each in idle:
            each.close()
    assert not capfd.readouterr().err


FEW_FILES = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 640))
from stripectl.workers import coordinator
coordinator.SPARE_DESCRIPTORS = 100
with coordinator.Coordinator(coordinator.Hosts(coordinator.free_address("127.0.0.1"), 2, 0), print) as cluster:
    print(*cluster.hosts.address, flush=True)
    sys.stdin.readline()
    files = [open("/dev/null") for _ in range(50)]
    print("opened", flush=True)
"""


@pytest.mark.hosts
def test_where_files_are_few_host_0_takes_fewer_connections() -> None:
    """In a process that may open 640 files: strangers wait, and the process can still open files of its own."""
    command, pipe = [sys.executable, "-c", FEW_FILES], subprocess.PIPE
    with subprocess.Popen(command, text=True, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        assert process.stdin and process.stdout and process.stderr
        host, port = process.stdout.readline().split()
        idle = [socket.create_connection((host, int(port))) for _ in range(600)]
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "opened\n"
        assert process.wait(60) == 0 and not process.stderr.read()
        for each in idle:
            each.close()


async def greeted(call: Any) -> links.Link:
    link = await links.join(call, SECRET.encode())
    await link.send(messages.write(GREETING))
    return link


def test_a_message_that_is_sent_again_ends_its_connection(cluster: Coordinator, warned: list[str]) -> None:
    async def repeats(call: Any) -> grpc.StatusCode:
        link = await greeted(call)
        again = link.outgoing.close(b"\0answer")
        await push(call, again)
        await push(call, again)
        return await status(call)

    assert visit(cluster, repeats) is grpc.StatusCode.UNAUTHENTICATED
    assert "again, or out of order" in warned[0]


@pytest.mark.parametrize("content", [b"{}", b"[]", b'{"kind": "Start"}', b"\xff"])
def test_a_greeting_of_another_form_is_turned_away(cluster: Coordinator, warned: list[str], content: bytes) -> None:
    async def greets(call: Any) -> grpc.StatusCode:
        await (await links.join(call, SECRET.encode())).send(content)
        return await status(call)

    assert visit(cluster, greets) is grpc.StatusCode.UNAUTHENTICATED
    joins(cluster)
    assert len(warned) == 1


def test_a_worker_that_nobody_started_is_turned_away(cluster: Coordinator, warned: list[str]) -> None:
    async def works(call: Any) -> grpc.StatusCode:
        await (await links.join(call, SECRET.encode())).send(messages.write(messages.WorkerGreeting(7)))
        return await status(call)

    assert visit(cluster, works, links.WORK) is grpc.StatusCode.UNAUTHENTICATED
    assert "no such worker" in warned[0]


def test_content_without_end_is_refused(
    cluster: Coordinator, warned: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "MAX_CONTENT_BYTES", 2**18)

    async def never_ends(call: Any) -> grpc.StatusCode:
        link = await greeted(call)
        for _ in range(10):
            await push(call, link.outgoing.close(links.MORE + bytes(links.MAX_PART_BYTES)))
        return await status(call)

    assert visit(cluster, never_ends) is not grpc.StatusCode.OK
    assert "more than 262144 bytes" in warned[0]


def test_many_strangers_are_not_all_printed(cluster: Coordinator, warned: list[str]) -> None:
    for _ in range(23):
        visit(cluster, says(b"hello"))
    joins(cluster)
    assert len(warned) == 20 and warned[-1].endswith("later refusals are not printed")


def test_long_content_arrives_whole(cluster: Coordinator) -> None:
    long = Greeting(1, 2, VERSION, "n" * 300_000, [0], {}, {}, {})

    async def greets(call: Any) -> None:
        link = await links.join(call, SECRET.encode())
        await link.send(messages.write(long))
        await asyncio.to_thread(cluster.gather, lambda *_: None, 30)

    visit(cluster, greets)
    assert cluster.peers[0].greeting == long


def test_without_a_secret_host_0_listens_on_loopback_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TOKEN, raising=False)
    with Coordinator(Hosts(free_address("127.0.0.1"), 2, 0), print) as cluster:
        port = cluster.hosts.address[1]
        lines = [
            line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()
        ]
        listening = [line[1].split(":") for line in lines if line[3] == "0A"]
        addresses = {address for address, at in listening if int(at, 16) == port}
        assert addresses and addresses <= LOOPBACK
        with pytest.raises(Missing, match=f"Without a secret only this machine can connect: set {TOKEN} or"):
            cluster.gather(lambda *_: None, 0.1)
        joins(cluster)


def test_a_host_with_another_secret_says_what_to_set(cluster: Coordinator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN, "not the secret of this test")
    with pytest.raises(BadInput, match=f"cannot join host 0 .* Set the same {TOKEN}"):
        follow(Hosts(cluster.hosts.coordinator, 2, 1), lambda *_: None, 10)


def test_a_port_that_is_taken_is_one_line(cluster: Coordinator) -> None:
    with pytest.raises(BadInput, match="cannot listen at port"):
        Coordinator(cluster.hosts, print)


def test_hosts_join_over_ipv6(warned: list[str]) -> None:
    with Coordinator(Hosts(free_address("::1"), 2, 0), warned.append) as cluster:
        joins(cluster)
