"""The only process that imports JAX: it answers its parent's requests, one JSON line each, until end of input.

`process` starts it as `python -m stripectl.cli.worker CONFIG`. When the parent dies, its pipe closes and the
worker ends, whatever it is doing; where the worker cannot notice, Linux ends it.
"""

import contextlib
import ctypes
import json
import os
import queue
import resource
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TextIO

from stripectl.errors import BadInput
from stripectl.util.json import Json
from stripectl.util.plug_in_errors import place_in_plug_in, show_traceback
from stripectl.workers.process import WorkerConfig

PR_SET_PDEATHSIG = 1  # of prctl(2)
HEARTBEAT_TIMEOUT_S = 20  # after which the other processes of a group end with one that is silent
MAX_HALF_CHARACTERS = 300  # characters of a long reason, at either end

Requests = Mapping[str, Callable[..., Any]]  # everything that a worker can do, by request


def end_with_parent() -> None:
    """Have Linux kill this process when its parent ends, because a worker that is stopped, or whose program never
    returns to the interpreter, does not notice the end of its input."""
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def claim_stdout() -> TextIO:
    """Standard output, reserved for answers: anything that a library prints goes to standard error."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    return answers


class WorkerRequest(NamedTuple):
    number: int
    do: str
    arguments: Mapping[str, Json]


def read_requests(requests: "queue.Queue[WorkerRequest]") -> None:
    """Queue requests as they arrive; end of input ends the process at once."""
    for line in sys.stdin:
        content = json.loads(line)
        requests.put(WorkerRequest(content["number"], content["do"], content["with"]))
    os._exit(0)


def failure(error: Exception) -> dict[str, Json]:
    """The answer to a request that raised: the reason in one line, with its place in a plug-in, and whether the request
    itself was bad. A long reason loses its middle, because the error of a callback is at its end."""
    text, unsupported = " ".join(str(error).split()), isinstance(error, BadInput)
    if len(text) > 2 * MAX_HALF_CHARACTERS:
        text = f"{text[:MAX_HALF_CHARACTERS]} … {text[-MAX_HALF_CHARACTERS:]}"
    place = place_in_plug_in(error)
    reason = text if unsupported else ": ".join(filter(None, (type(error).__name__, text))) + place
    return {"reason": reason, "unsupported": unsupported}


def serve(config: WorkerConfig, start: Callable[[], Requests]) -> None:
    """Answer requests, and only those in the table that `start` makes once JAX is there."""
    end_with_parent()
    answers = claim_stdout()
    requests: queue.Queue[WorkerRequest] = queue.Queue()
    threading.Thread(target=read_requests, args=(requests,), daemon=True).start()
    if config.memory_bytes:
        resource.setrlimit(resource.RLIMIT_DATA, (config.memory_bytes, config.memory_bytes))
    if config.core is not None:
        os.sched_setaffinity(0, {config.core})

    import jax

    if config.processes > 1:
        jax.distributed.initialize(
            config.coordinator,
            config.processes,
            config.process,
            heartbeat_timeout_seconds=HEARTBEAT_TIMEOUT_S,
            coordinator_bind_address=config.coordinator,
        )
    known = start()
    while True:
        request = requests.get()
        try:
            if (do := known.get(request.do)) is None:
                raise BadInput(f"{request.do!r} is not a request of this worker")
            answer = {"result": do(**request.arguments)}
        except Exception as error:  # an error in a plan's program is the plan's result, not this worker's end
            show_traceback(error)
            answer = failure(error)
        answers.write(json.dumps(answer | {"to": request.number}) + "\n")
