"""The secret of a run: where it comes from, and which messages it lets through."""

import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stripectl.errors import BadInput
from stripectl.workers.secret import TOKEN, TOKEN_FILE, Seal, Unauthentic, check_proof, proof, run_secret

SECRET = b"a secret of a run"


def test_the_variable_has_the_secret() -> None:
    assert run_secret({TOKEN: "0123456789abcdef", TOKEN_FILE: "/nowhere"}, leads=False) == b"0123456789abcdef"
    assert run_secret({}, leads=True) is None


def test_host_0_writes_the_file_that_is_missing_and_the_others_read_it(tmp_path: Path) -> None:
    path = tmp_path / "token"
    variables = {TOKEN_FILE: str(path)}
    assert run_secret(variables, leads=False) is None
    written = run_secret(variables, leads=True)
    assert written and len(written) == 64 and stat.S_IMODE(path.stat().st_mode) == 0o600
    assert run_secret(variables, leads=True) == run_secret(variables, leads=False) == written
    assert os.listdir(tmp_path) == ["token"]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644])
def test_a_file_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "token"
    path.write_text("0123456789abcdef")
    path.chmod(mode)
    with pytest.raises(BadInput, match="other users can read it"):
        run_secret({TOKEN_FILE: str(path)}, leads=False)


def test_a_short_secret_is_refused() -> None:
    with pytest.raises(BadInput, match=f"{TOKEN} has fewer than 16 characters"):
        run_secret({TOKEN: "secret"}, leads=True)


def test_a_proof_holds_for_its_secret_role_and_nonces_alone() -> None:
    mine = proof(SECRET, b"host 0", b"nonces")
    check_proof(SECRET, b"host 0", b"nonces", mine)
    for secret, role, nonces in (
        (b"other", b"host 0", b"nonces"),
        (SECRET, b"other", b"nonces"),
        (SECRET, b"host 0", b""),
    ):
        with pytest.raises(Unauthentic):
            check_proof(secret, role, nonces, mine)


def seals() -> tuple[Seal, Seal]:
    return Seal.of(SECRET, b"host 0", b"nonces"), Seal.of(SECRET, b"host 0", b"nonces")


@given(st.lists(st.binary(max_size=50), max_size=5))
def test_messages_arrive_in_order(contents: list[bytes]) -> None:
    sender, receiver = seals()
    assert [receiver.open(sender.close(content)) for content in contents] == contents


@given(st.binary(max_size=50), st.integers(min_value=0), st.integers(1, 255))
def test_a_message_with_any_other_byte_is_refused(content: bytes, at: int, change: int) -> None:
    sender, receiver = seals()
    message = bytearray(sender.close(content))
    message[at % len(message)] ^= change
    with pytest.raises(Unauthentic):
        receiver.open(bytes(message))


def test_a_message_that_is_sent_again_skipped_or_sent_back_is_refused() -> None:
    sender, receiver = seals()
    first, second = sender.close(b"first"), sender.close(b"second")
    with pytest.raises(Unauthentic, match="out of order"):
        receiver.open(second)
    receiver.open(first)
    with pytest.raises(Unauthentic, match="again"):
        receiver.open(first)
    with pytest.raises(Unauthentic, match="did not make"):
        Seal.of(SECRET, b"another host", b"nonces").open(first)
    with pytest.raises(Unauthentic, match="did not make"):
        Seal.of(SECRET, b"host 0", b"other nonces").open(first)


@given(st.binary(max_size=60))
def test_bytes_that_are_no_message_are_refused(content: bytes) -> None:
    with pytest.raises(Unauthentic):
        seals()[1].open(content)
