"""The workers of a command: groups of processes that drive the local devices."""

from dataclasses import replace

from stripectl.errors import Missing
from stripectl.results.backend import DevicesFound, Tell, ignore
from stripectl.results.devices import DeviceGroup
from stripectl.results.environment import cores
from stripectl.results.records import read_record
from stripectl.util.progress import Say
from stripectl.workers.hosts import Cluster
from stripectl.workers.worker_group import WorkerError, WorkerGroup


class LocalWorkers:
    """The worker groups that a command has started, which end together. They belong to this host, or to all hosts of a
    cluster. `tell` gets an event with the devices that JAX finds in each group."""

    def __init__(self, say: Say, cluster: Cluster | None = None, tell: Tell = ignore) -> None:
        self.say, self.cluster, self.tell = say, cluster, tell
        self.groups: dict[int | None, WorkerGroup] = {}

    def __enter__(self) -> "LocalWorkers":
        return self

    def __exit__(self, *exception: object) -> None:
        for each in self.groups.values():
            each.stop()

    @property
    def cores(self) -> int:
        """The number of cores of all hosts."""
        return sum(len(each.cores) for each in self.cluster.facts) if self.cluster else len(cores())

    def group(self, processes: int | None) -> WorkerGroup:
        """The group of `processes` processes, one for each CPU device; None: the processes that JAX itself takes."""
        if processes not in self.groups:
            self.tell(DevicesFound([self._start(processes)]))
        return self.groups[processes]

    def look(self) -> DeviceGroup:
        """The devices that JAX finds here. A CPU's devices are an event only when their processes start.

        Raises:
            Missing: there are none.
        """
        found = self._start(None)
        if found.platform == "cpu":
            self.groups.pop(None).stop()
        else:
            self.tell(DevicesFound([found]))
        return found

    def _start(self, processes: int | None) -> DeviceGroup:
        self.say("look for devices", 0, 1)
        started = self.groups[processes] = WorkerGroup(processes, cluster=self.cluster)
        return replace(_devices_of(started), processes=processes or 1)


def _devices_of(started: WorkerGroup, again: bool = True) -> DeviceGroup:
    """A group's description of its devices; a worker that is killed before it answers is started once more."""
    try:
        return read_record(DeviceGroup, started.ask("devices")[0])
    except WorkerError as failure:
        if again and not failure.group_alive and not failure.timed_out:
            return _devices_of(started, again=False)
        raise Missing(f"JAX found no device here: {failure}. Run stripectl doctor.") from failure
