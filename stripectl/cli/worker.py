"""The program of a worker, `python -m stripectl.cli.worker CONFIG`: it answers only the requests of its session."""

import json
import sys

from stripectl.workers.process import WorkerConfig
from stripectl.workers.worker import Requests, serve


def measure_requests() -> Requests:
    from stripectl.measure.session import Session

    session = Session()
    return {
        "devices": session.devices,
        "prepare": session.prepare,
        "run": session.run,
        "sample": session.sample,
        "profile": session.profile,
        "release": session.release,
        "time_block": session.time_block,
        "prepare_block": session.prepare_block,
        "sample_block": session.sample_block,
        "time_hop": session.time_hop,
        "time_matmul": session.time_matmul,
    }


def compile_requests() -> Requests:
    from stripectl.compile.session import Session

    session = Session()
    return {"compile": session.compile, "probe": session.probe, "ready": session.ready}


def profile_requests() -> Requests:
    from stripectl.profiling.session import Session

    return {"analyse": Session().analyse}


def hosts_requests() -> Requests:
    from stripectl.workers.host_detection import detected_hosts

    return {"hosts": detected_hosts}


def probe_requests() -> Requests:
    from stripectl.compat import probe_jax

    return {"probe": probe_jax}


SESSIONS = {
    "measure": measure_requests,
    "compile": compile_requests,
    "profile": profile_requests,
    "hosts": hosts_requests,
    "probe": probe_requests,
}


if __name__ == "__main__":
    config = WorkerConfig(**json.loads(sys.argv[1]))
    serve(config, SESSIONS[config.session])
