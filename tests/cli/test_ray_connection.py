"""Reasons why a Ray cluster cannot be joined."""

import socket

import pytest

from stripectl.cli.ray_connection import connect
from stripectl.errors import BadInput


def test_ray_that_is_not_installed_is_named() -> None:
    def absent(name: str) -> None:
        raise ModuleNotFoundError(name)

    with pytest.raises(BadInput, match=r"pip install 'stripectl\[ray\]'"):
        connect("ray", absent)


def test_another_version_of_ray_is_one_line() -> None:
    class Ray:
        def init(self, *_: object, **__: object) -> None:
            raise RuntimeError("Version mismatch: The cluster was started with:\n    Ray: 2.9.0\n    Python: 3.9.1")

    with socket.create_server(("127.0.0.1", 0)) as head, pytest.raises(BadInput) as refused:
        connect(f"ray://127.0.0.1:{head.getsockname()[1]}", lambda name: Ray())
    assert "The cluster was started with: Ray: 2.9.0 Python: 3.9.1" in str(refused.value)
    assert "\n" not in str(refused.value)
