"""Connections between hosts: gRPC streams of bytes, both ends of which know the secret of the run.

gRPC limits messages to 64 KiB, and ends a connection whose other end answers no ping for 20 seconds. Longer content is
sent in several messages.
"""

import asyncio
import contextlib
import secrets
import socket
from typing import Any, Protocol

import grpc
import grpc.aio

from stripectl.workers.secret import COUNTER_BYTES, NONCE_BYTES, PROOF_BYTES, Seal, Unauthentic, check_proof, proof

FOLLOW, WORK = "/stripectl.Hosts/Follow", "/stripectl.Hosts/Work"  # a host's orders; the bytes of a worker
MAX_MESSAGE_BYTES = 2**16
MAX_PART_BYTES = MAX_MESSAGE_BYTES - COUNTER_BYTES - PROOF_BYTES - 1
MAX_CONTENT_BYTES = 2**20  # of an order or an answer: a worker's bytes are not collected here
HANDSHAKE_S = 5.0
PING_S, PING_TIMEOUT_S = 5, 15
OPTIONS = [
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_metadata_size", 2**13),
    ("grpc.keepalive_time_ms", PING_S * 1000),
    ("grpc.keepalive_timeout_ms", PING_TIMEOUT_S * 1000),
    ("grpc.http2.ping_timeout_ms", PING_TIMEOUT_S * 1000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", PING_S * 1000 // 2),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.so_reuseport", 0),  # a second host 0 at the same port is an error
    ("grpc.enable_http_proxy", 0),
]
LEADER, FOLLOWER = b"host 0", b"another host"
LAST, MORE = b"\0", b"\1"


class Stream(Protocol):
    """The methods that both ends of a gRPC stream have."""

    async def read(self) -> Any: ...

    async def write(self, message: bytes, /) -> None: ...


ENDED = (grpc.aio.AioRpcError, grpc.aio.UsageError, grpc.aio.InternalError, asyncio.InvalidStateError)


async def next_message(stream: Stream) -> bytes | None:
    """The next message of the other end; None at the end of the stream, however it ended."""
    try:
        message = await stream.read()
    except ENDED:
        return None
    return message if isinstance(message, bytes) else None


async def put(stream: Stream, message: bytes) -> None:
    """Send a message. Raises ConnectionError where the other end is gone."""
    try:
        await stream.write(message)
    except ENDED as error:
        raise ConnectionError("the connection is closed") from error


class Link:
    """A stream after its handshake: content in order, from the other end of this run alone."""

    def __init__(self, stream: Stream, secret: bytes, role: bytes, other: bytes, nonces: bytes) -> None:
        self.stream = stream
        self.outgoing, self.incoming = Seal.of(secret, role, nonces), Seal.of(secret, other, nonces)

    async def send(self, content: bytes) -> None:
        """Raises ConnectionError where the other end is gone."""
        parts = [content[at : at + MAX_PART_BYTES] for at in range(0, len(content), MAX_PART_BYTES)] or [b""]
        for number, part in enumerate(parts, 1):
            await put(self.stream, self.outgoing.close((LAST if number == len(parts) else MORE) + part))

    async def receive(self) -> bytes | None:
        """The next content; None at the end.

        Raises:
            Unauthentic: a message is not the next one of the other end. ValueError: the content is too long.
        """
        parts, size = [], 0
        while (message := await next_message(self.stream)) is not None:
            content = self.incoming.open(message)
            parts.append(content[1:])
            size += len(content)
            if content[:1] == LAST:
                return b"".join(parts)
            if size > MAX_CONTENT_BYTES:
                raise ValueError(f"it sent more than {MAX_CONTENT_BYTES} bytes at once")
        return None


async def first(stream: Stream, size: int) -> bytes:
    """A message of the handshake.

    Raises:
        Unauthentic: it is not there in time, or has another size. ConnectionError: the other end is gone.
    """
    try:
        message = await asyncio.wait_for(next_message(stream), HANDSHAKE_S)
    except TimeoutError:
        raise Unauthentic(f"it was silent for {HANDSHAKE_S:g} s") from None
    if message is None:
        raise ConnectionError("it closed the connection before it proved that it knows the secret")
    if len(message) != size:
        raise Unauthentic("it did not begin with the handshake of this run")
    return message


async def admit(stream: Stream, secret: bytes) -> Link:
    """Host 0's end of the handshake.

    Raises:
        Unauthentic: the other end does not know the secret. ConnectionError: it is gone.
    """
    own = secrets.token_bytes(NONCE_BYTES)
    nonces = await first(stream, NONCE_BYTES) + own
    await put(stream, own + proof(secret, LEADER, nonces))
    check_proof(secret, FOLLOWER, nonces, await first(stream, PROOF_BYTES))
    return Link(stream, secret, LEADER, FOLLOWER, nonces)


async def join(stream: Stream, secret: bytes) -> Link:
    """Another host's end of the handshake.

    Raises:
        Unauthentic: host 0 does not know the secret. ConnectionError: it is not there.
    """
    own = secrets.token_bytes(NONCE_BYTES)
    await put(stream, own)
    answer = await first(stream, NONCE_BYTES + PROOF_BYTES)
    nonces = own + answer[:NONCE_BYTES]
    check_proof(secret, LEADER, nonces, answer[NONCE_BYTES:])
    await put(stream, proof(secret, FOLLOWER, nonces))
    return Link(stream, secret, FOLLOWER, LEADER, nonces)


async def pump(link: Link, end: socket.socket) -> None:
    """Carry bytes both ways between a link and a socket until either ends; then close the socket."""
    loop = asyncio.get_running_loop()
    end.setblocking(False)

    async def outward() -> None:
        while data := await loop.sock_recv(end, MAX_PART_BYTES):
            await link.send(data)

    async def inward() -> None:
        while (data := await link.receive()) is not None:
            await loop.sock_sendall(end, data)

    tasks = [asyncio.create_task(outward()), asyncio.create_task(inward())]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
        await asyncio.gather(*tasks, return_exceptions=True)
        end.close()
