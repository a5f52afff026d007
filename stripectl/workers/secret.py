"""The secret of a run, and what it proves: that both ends of a connection know it, and that a message is the next one.

Both ends send a nonce, and each proves by HMAC-SHA256 (RFC 2104) over its role and both nonces that it knows the
secret; nothing else is read before. Later messages carry a counter and a MAC under a key of this connection and
direction, so none can be forged, replayed, reordered or sent back.
"""

import hmac
import os
import secrets
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from stripectl.errors import BadInput

TOKEN, TOKEN_FILE = "STRIPECTL_TOKEN", "STRIPECTL_TOKEN_FILE"
MIN_SECRET_CHARACTERS = 16
NONCE_BYTES = PROOF_BYTES = 32
COUNTER_BYTES = 8


class Unauthentic(Exception):
    """The other end of a connection does not know the secret, or a message is not the next one of the other end."""


def run_secret(variables: Mapping[str, str], *, leads: bool) -> bytes | None:
    """The secret of a run: the value of STRIPECTL_TOKEN, or the content of the file that STRIPECTL_TOKEN_FILE names,
    which host 0 (`leads`) writes where it does not exist. None where neither is set, or the file is not there yet.

    Raises:
        BadInput: the secret is short, or others than the owner of the file can read it.
    """
    if token := variables.get(TOKEN):
        return checked(token, TOKEN)
    if not (name := variables.get(TOKEN_FILE)):
        return None
    path = Path(name)
    if leads and not path.exists():
        write_secret(path)
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            text = file.read(4096).decode("ascii", "replace").strip()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise BadInput(f"cannot read {path} because {error.strerror}. Try another {TOKEN_FILE}.") from error
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise BadInput(f"cannot use the secret in {path} because other users can read it. Try chmod 600 {path}.")
    return checked(text, str(path))


def checked(text: str, name: str) -> bytes:
    if len(text) < MIN_SECRET_CHARACTERS:
        raise BadInput(
            f"the secret in {name} has fewer than {MIN_SECRET_CHARACTERS} characters. Try "
            f'{TOKEN}="$(openssl rand -hex 32)".'
        )
    return text.encode()


def write_secret(path: Path) -> None:
    """Write a new secret that only its owner can read; the file appears with its content."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_hex(32) + "\n")
        draft.rename(path)
    except OSError as error:
        raise BadInput(f"cannot write {path} because {error.strerror}. Try another {TOKEN_FILE}.") from error


def mac(key: bytes, *parts: bytes) -> bytes:
    """HMAC-SHA256 over parts, each after its length."""
    return hmac.digest(key, b"".join(len(part).to_bytes(8) + part for part in parts), "sha256")


def proof(secret: bytes, role: bytes, nonces: bytes) -> bytes:
    """The proof that an end of a connection knows the secret. `role` names that end, so that a proof which is sent back
    to its sender proves nothing."""
    return mac(secret, b"proof", role, nonces)


def check_proof(secret: bytes, role: bytes, nonces: bytes, given: bytes) -> None:
    """Raises Unauthentic unless `given` is the proof of the other end."""
    if not hmac.compare_digest(proof(secret, role, nonces), given):
        raise Unauthentic("it does not know the secret of this run")


@dataclass
class Seal:
    """Messages of one direction of one connection, in order."""

    key: bytes
    count: int = 0

    @classmethod
    def of(cls, secret: bytes, role: bytes, nonces: bytes) -> "Seal":
        """The messages that the end `role` sends."""
        return cls(mac(secret, b"messages", role, nonces))

    def close(self, content: bytes) -> bytes:
        """The next message to send."""
        number = self.count.to_bytes(COUNTER_BYTES)
        self.count += 1
        return number + mac(self.key, number, content) + content

    def open(self, message: bytes) -> bytes:
        """The content of the next message that arrived.

        Raises:
            Unauthentic: it is not the next message of the other end.
        """
        number, rest = message[:COUNTER_BYTES], message[COUNTER_BYTES:]
        given, content = rest[:PROOF_BYTES], rest[PROOF_BYTES:]
        if not hmac.compare_digest(mac(self.key, number, content), given):
            raise Unauthentic("it sent a message that the other host did not make")
        if number != self.count.to_bytes(COUNTER_BYTES):
            raise Unauthentic("it sent a message again, or out of order")
        self.count += 1
        return content
