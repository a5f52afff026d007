"""The connection to a Ray cluster."""

import importlib
import os
import re
import socket
import warnings
from collections.abc import Callable
from typing import Any

from stripectl.errors import BadInput
from stripectl.util.files import printable

CONNECT_S = 10.0


def connect(address: str, load: Callable[[str], Any] = importlib.import_module) -> Any:
    """The module `ray`, connected to a cluster.

    Raises:
        BadInput: Ray is not installed, no cluster answers, or it has another version of Ray or Python.
    """
    try:
        ray = load("ray")
    except ImportError:
        raise BadInput("--cluster needs Ray, which is not installed. Try pip install 'stripectl[ray]'.") from None
    where = os.environ.get("RAY_ADDRESS", "auto") if address == "ray" else address
    if found := re.fullmatch(r"(?:ray://)?\[?(.+?)\]?:(\d+)", where):
        try:  # because Ray takes minutes to notice that nothing answers
            socket.create_connection((found[1], int(found[2])), CONNECT_S).close()
        except (OSError, OverflowError) as error:
            raise BadInput(
                f"cannot join the Ray cluster at {where} because nothing answers there ({error}). Run ray status on "
                "its head node."
            ) from error
    try:
        with warnings.catch_warnings():  # their content is in the error
            warnings.simplefilter("ignore")
            ray.init(where, log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, RuntimeError, ValueError) as error:
        reason = " ".join(printable(str(error)).split())
        raise BadInput(f"cannot join the Ray cluster at {where} because {reason}") from error
    return ray
