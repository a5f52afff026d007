"""Hosts accept the messages of the table, with their fields and types, and nothing else."""

import json
from typing import Any

import pytest

from stripectl.workers import messages
from stripectl.workers.messages import ORDERS, Answer, Done, End, Greeting, Refuse, Start, Stop, Welcome

EXAMPLES = [
    Welcome(),
    Refuse("no"),
    Start(1, 2, 1, "10.0.0.1:80", None),
    Start(1, 2, 1, "10.0.0.1:80", 3),
    End(1),
    Stop(1),
    Done(0, "", None),
]


@pytest.mark.parametrize("message", EXAMPLES, ids=str)
def test_a_message_is_read_as_it_was_written(message: Any) -> None:
    assert messages.read(messages.write(message), *ORDERS) == message


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff",
        b"[]",
        b"null",
        b"{}",
        b"[" * 100_000,
        b'{"kind": "Answer", "text": "an answer is no order"}',
        b'{"kind": "__init__", "worker": 1}',
        b'{"kind": ["Stop"], "worker": 1}',
        b'{"kind": "Stop"}',
        b'{"kind": "Stop", "worker": "1"}',
        b'{"kind": "Stop", "worker": true}',
        b'{"kind": "Stop", "worker": 1.5}',
        b'{"kind": "Stop", "worker": 1, "more": 1}',
        b'{"kind": "Start", "worker": 1, "processes": 2, "process": 1, "coordinator": null, "core": 1}',
        b'{"kind": "Start", "worker": 1, "processes": 2, "process": 1, "coordinator": "x", "core": 1, "variables": {}}',
    ],
    ids=lambda content: content[:60].decode(errors="replace"),
)
def test_anything_else_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError):
        messages.read(content, *ORDERS)


def test_a_greeting_has_numbers_of_cores() -> None:
    fields = {"index": 1, "count": 2, "stripectl": "1", "name": "n", "versions": {}, "flags": {}, "host": {}}
    known = Greeting(**fields, cores=[0, 1])
    assert messages.read(messages.write(known), Greeting) == known
    with pytest.raises(ValueError):
        messages.read(json.dumps({"kind": "Greeting", **fields, "cores": ["0"]}).encode(), Greeting)


def test_an_answer_may_be_empty() -> None:
    assert messages.read(messages.write(Answer(None)), Answer) == Answer(None)
