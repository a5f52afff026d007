"""Commands that run on many hosts at once: the same command on each, with the hosts named or found in the cluster."""

import functools
import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stripectl.cli.command_options import HostOptions
from stripectl.errors import BadInput, StripectlError

if TYPE_CHECKING:
    from stripectl.workers.hosts import Cluster, Hosts

# Environment variables of clusters that start a command on many hosts, and files of a TPU host.
SIGNS = ("SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "TPU_WORKER_HOSTNAMES", "MEGASCALE_SLICE_ID", "JOB_COMPLETION_INDEX")
DEVICES = ("/dev/accel0", "/dev/vfio/0")


def on_every_host(body: Callable[..., int]) -> Callable[..., int]:
    """Run a command's body on host 0, which has the other hosts as `click`'s context object; the others follow it."""

    @functools.wraps(body)
    def command(**given: Any) -> int:
        from stripectl.workers.worker_group import interruptible

        with interruptible():
            options, run = HostOptions.of(given), functools.partial(body, **given)
            if options.cluster:
                return run_on_ray(options.cluster, options, run)
            hosts = find_hosts(options.coordinator, options.num_processes, options.process_id)
            if hosts is None:
                return run()
            note_loopback(hosts)
            return follow_run(hosts, options.quiet) if hosts.index else lead_run(hosts, options.quiet, run)

    return command


def run_on_ray(address: str, options: HostOptions, run: Callable[[], int]) -> int:
    """Run the command here, with the devices of a Ray cluster's nodes.

    Raises:
        BadInput: no Ray cluster has this address, or there are options of hosts that join in another way.
    """
    from stripectl.cli.ray_connection import connect
    from stripectl.reporters.terminal.screen import ProgressDisplay
    from stripectl.workers.ray_cluster import RayCluster

    if address != "ray" and not address.startswith("ray://"):
        raise BadInput(f"cannot join the cluster {address!r} because its kind is not known. Try --cluster ray.")
    if options.coordinator or options.process_id is not None:
        raise BadInput("--cluster cannot be used with --coordinator or --process-id. Ray knows its nodes.")
    with ExitStack() as stack:
        with ProgressDisplay(options.quiet) as reporter:
            waiting = functools.partial(reporter.say, "wait for Ray nodes")
            cluster = stack.enter_context(RayCluster(connect(address), options.num_processes, waiting))
        click.get_current_context().find_root().obj = cluster
        return run()


def find_hosts(coordinator: str | None, count: int | None, index: int | None) -> "Hosts | None":
    """The hosts from options, or from the surrounding cluster; None: only this host.

    Raises:
        BadInput: some of the options are missing.
    """
    from stripectl.workers.hosts import Hosts

    if count == 1 or (coordinator, count, index) == (None, None, None):
        return detect_hosts() if count is None and has_signs() else None
    if coordinator is None or count is None or index is None:
        raise BadInput(
            "--coordinator, --num-processes and --process-id must be given together. Try --coordinator 10.0.0.1:8476 "
            "--num-processes 2 --process-id 0."
        )
    return Hosts(coordinator, count, index)


def has_signs() -> bool:
    return any(name in os.environ for name in SIGNS) or any(Path(path).exists() for path in DEVICES)


def detect_hosts() -> "Hosts | None":
    """The hosts as JAX finds them, in a separate process."""
    from stripectl.workers.hosts import Hosts
    from stripectl.workers.worker_group import WorkerError, WorkerGroup

    with WorkerGroup(session="hosts", variables={"JAX_PLATFORMS": "cpu"}) as asked:
        try:
            found = asked.ask("hosts")[0]
        except WorkerError as failure:
            raise BadInput(
                f"JAX cannot find the hosts because {failure}. Try --coordinator, --num-processes and --process-id, or "
                "--num-processes 1."
            ) from failure
    return Hosts(**found) if found and found["count"] > 1 else None


def note_loopback(hosts: "Hosts") -> None:
    """Print a note where other hosts cannot reach this host by its name."""
    import platform

    from stripectl.workers.hosts import loopback_note

    if note := loopback_note(hosts, platform.node()):
        click.echo(f"note: {note}", err=True)


def lead_run(hosts: "Hosts", quiet: bool, run: Callable[[], int]) -> int:
    """Run the command here, on host 0, with the devices of all hosts, and tell the others how it ended."""
    from stripectl.reporters.terminal.screen import ProgressDisplay
    from stripectl.workers.coordinator import Coordinator

    with Coordinator(hosts, functools.partial(click.echo, err=True)) as cluster:
        code, said = 130, "host 0 was interrupted"
        try:
            with ProgressDisplay(quiet) as reporter:
                cluster.gather(functools.partial(reporter.say, "wait for hosts"))
            click.get_current_context().find_root().obj = cluster
            code, said = run(), ""
        except StripectlError as error:
            code, said = error.exit_code, str(error)
            raise
        finally:
            cluster.done(code, said)
        return code


def follow_run(hosts: "Hosts", quiet: bool) -> int:
    """Follow host 0's orders, and return its exit code."""
    from stripectl.reporters.terminal.screen import ProgressDisplay
    from stripectl.workers.follower import follow

    with ProgressDisplay(quiet) as reporter:
        found = follow(hosts, functools.partial(reporter.say, f"host {hosts.index} of {hosts.count}"))
    best = f"recommended {found.recommended}; " if found.recommended else ""
    end = f"ended: {found.reason}" if found.reason else f"done: {best}the results are on host 0, {hosts.address[0]}."
    click.echo(f"host {hosts.index} of {hosts.count} {end}", err=True)
    return found.code


def cluster_here() -> "Cluster | None":
    """The hosts of the running command; None where it runs only on this host."""
    return click.get_current_context().find_root().obj
