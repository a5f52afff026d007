"""The local devices of a target, and the times that were measured on them."""

from dataclasses import dataclass, field, replace
from typing import Any

from stripectl.compile.toolchain import TOOLCHAINS
from stripectl.core.kernel import kernels
from stripectl.core.layout import Tile
from stripectl.core.plan import Plan
from stripectl.core.workload import Workload
from stripectl.costs.cost_model import CostModel
from stripectl.costs.cost_tables import shipped_costs, table_cost_model
from stripectl.costs.datasheet import datasheet_cost_model
from stripectl.costs.default_tiles import TimedTile
from stripectl.errors import BadInput, Missing
from stripectl.hardware.placement import MeshPlacement, place_mesh
from stripectl.hardware.profile import Hardware, hardware_of_device
from stripectl.hardware.target import Target, parse_target, target_of
from stripectl.results.devices import DeviceGroup
from stripectl.results.environment import cores
from stripectl.results.records import read_record, record_json
from stripectl.simulate.calibration import (
    HOP_BYTES,
    BlockShape,
    CalibrationBlock,
    blocks_for,
    fit_hop,
    measured_cost_model,
)
from stripectl.util.progress import Say
from stripectl.workers.hosts import Cluster
from stripectl.workers.worker_group import WorkerError, WorkerGroup

DEFAULT_RING_DEVICES = (
    8  # devices of the ring that a machine with one device simulates: a node of GPUs, the papers' smallest slices
)


@dataclass(frozen=True)
class LocalTarget:
    """A target, its devices that are available here, the processes that drive it, and the default tiles that are timed
    on them."""

    target: Target
    here: int = 0
    processes: int | None = None
    timed: TimedTile | None = field(default=None, compare=False)


class DevicePool:
    """The worker groups that a bench has started, and the times measured on them; all end together. `discovered` holds
    the devices that JAX finds in each group. The groups belong to this host, or to all hosts of a cluster."""

    def __init__(self, say: Say, cluster: Cluster | None = None) -> None:
        self.say, self.cluster = say, cluster
        self.discovered: list[DeviceGroup] = []
        self.groups: dict[int | None, WorkerGroup] = {}
        self.info: dict[int | None, DeviceGroup] = {}
        self.timed: dict[Any, dict[CalibrationBlock, float]] = {}
        self.hops: dict[int | None, tuple[float, float] | None] = {}
        self.rates: dict[str, float] = {}
        self.compilers_missing: dict[str, str | None] = {}
        self.wirings: dict[tuple[str, tuple[tuple[str, int], ...]], MeshPlacement] = {}

    def __enter__(self) -> "DevicePool":
        return self

    def __exit__(self, *exception: object) -> None:
        for each in self.groups.values():
            each.stop()

    @property
    def cores(self) -> int:
        """The number of cores of all hosts."""
        return sum(len(each.cores) for each in self.cluster.facts) if self.cluster else len(cores())

    def group(self, processes: int | None) -> WorkerGroup:
        if processes not in self.groups:
            self.say("look for devices", 0, 1)
            started = self.groups[processes] = WorkerGroup(processes, cluster=self.cluster)
            self.info[processes] = replace(self._first(started), processes=processes or 1)
            self.discovered.append(self.info[processes])
        return self.groups[processes]

    def _first(self, started: WorkerGroup, again: bool = True) -> DeviceGroup:
        """A group's description of its devices; a worker that is killed meanwhile is started once more."""
        try:
            return read_record(DeviceGroup, started.ask("devices")[0])
        except WorkerError as failure:
            if again and not failure.group_alive and not failure.timed_out:
                return self._first(started, again=False)
            raise Missing(f"JAX found no device here: {failure}. Run stripectl doctor.") from failure

    def local_target(self, name: str, profile: Hardware | None) -> LocalTarget:
        """The target by its name; `local` means the devices that are found.

        Raises:
            BadInput, Missing: not a target, or no devices.
        """
        if name != "local":
            target = parse_target(name, profile)
            if target.hardware.kind == "cpu":
                here = min(target.devices, self.cores)
                return LocalTarget(target, here if here == target.devices else 0, here)
            return LocalTarget(target)
        before = list(self.discovered)
        self.group(None)
        found = self.info[None]
        if found.platform == "cpu":
            self.groups.pop(None).stop()
            self.discovered[:] = before
            here = 2 ** (self.cores.bit_length() - 1)  # a power of two divides usual sequence lengths
            return LocalTarget(Target(profile or Hardware.load("cpu"), (max(DEFAULT_RING_DEVICES, here),)), here, here)
        known = profile or hardware_of_device(found.kind, found.platform)
        devices = found.count if found.count > 1 else DEFAULT_RING_DEVICES
        return LocalTarget(target_of(known, devices), found.count)

    def hop(self, processes: int | None, count: int) -> tuple[float, float] | None:
        """(latency, rate) of a hop between the local devices, or None for one device."""
        if processes not in self.hops:
            timed = []
            for done, nbytes in enumerate(HOP_BYTES if count > 1 else ()):
                self.say(f"time a hop of {nbytes >> 10} KiB", done, len(HOP_BYTES))
                timed.append(max(self.group(processes).ask("time_hop", nbytes=nbytes)))
            self.hops[processes] = fit_hop(HOP_BYTES, timed) if timed else None
        return self.hops[processes]

    def cost_model(self, place: LocalTarget, workload: Workload, plan: Plan) -> CostModel:
        """The cost model of tiles and hops: timed here where the target's device is local, else from the table that
        ships for it, else from its datasheet."""
        hardware, tile = place.target.hardware, plan.tile
        assert tile
        if place.processes is None and not place.here:
            wired = self.placement(place.target, plan.mesh or ())
            if known := shipped_costs(hardware, workload, plan):
                return table_cost_model(hardware, workload, plan, known, wired)
            return datasheet_cost_model(hardware, workload, tile, wired, plan.backward, kernels[plan.kernel])
        if kernels[plan.kernel].keeps_all_scores:
            raise BadInput(
                f"{plan.kernel} has no tile that could be timed for a simulation. Try --method measured, or a --target "
                "with a datasheet."
            )
        both = plan.tiles if workload.passes != "forward" else {"forward": tile}
        shape = BlockShape.of(workload, plan.kernel, hardware.kind)
        times = {passes: self.tile_times(place, plan.kernel, own, workload, passes) for passes, own in both.items()}
        machine = measured_cost_model(times, both, shape.heads, plan.kernel, self.hop_of(place), hardware.overlaps)
        return replace(machine, torus=bool(hardware.torus_dims))

    def placement(self, target: Target, mesh: tuple[tuple[str, int], ...]) -> MeshPlacement:
        """The placement of a mesh on the links of a target, computed once."""
        if (str(target), mesh) not in self.wirings:
            self.wirings[str(target), mesh] = place_mesh(target, mesh)
        return self.wirings[str(target), mesh]

    def why_not_compiled(self, place: LocalTarget) -> str | None:
        """Why the target's compiler is not installed, checked once; None where it is, or where it is not needed."""
        kind = place.target.hardware.kind
        if place.here or kind not in TOOLCHAINS:
            return None
        if kind not in self.compilers_missing:
            self.compilers_missing[kind] = TOOLCHAINS[kind].missing
        return self.compilers_missing[kind]

    def hop_of(self, place: LocalTarget) -> tuple[float, float] | None:
        """(latency, rate) of a hop: measured between the local devices, else from the datasheet."""
        hardware, hop = place.target.hardware, self.hop(place.processes, place.processes or place.here)
        if hop is None and (link := hardware.figure("link_bytes_per_s_one_way")):
            return hardware.figure("hop_latency_s") or 0.0, link
        return hop

    def hardware(self, place: LocalTarget, dtype: str) -> Hardware:
        """The target's hardware, with the rate of a large matmul measured on it where it is local."""
        known = place.target.hardware
        if place.processes is None and not place.here:
            return known
        if dtype not in self.rates:
            self.say("time a matmul", 0, 1)
            self.rates[dtype] = min(self.group(place.processes).ask("time_matmul", 300, dtype=dtype))
        return replace(known, figures={**known.figures, f"achievable_flops_per_s_{dtype}": self.rates[dtype]})

    def tile_times(
        self, place: LocalTarget, kernel: str, tile: Tile, workload: Workload, passes: str
    ) -> dict[CalibrationBlock, float]:
        """Seconds of the blocks of a tile in one pass, timed once."""
        shape = BlockShape.of(workload, kernel, place.target.hardware.kind)
        which = (place.processes, kernel, tile, passes, shape)
        if which not in self.timed:
            (fitted, held_out), times = blocks_for(tile), dict[CalibrationBlock, float]()
            for done, block in enumerate([*fitted, held_out]):
                self.say(f"time tiles of {tile}, {passes}: {block}", done, len(fitted) + 1)
                request = {"rows": block.rows, "band": block.band, "passes": [passes], "shape": record_json(shape)}
                answers = self.group(place.processes).ask("time_block", 600, kernel=kernel, tile=str(tile), **request)
                times[block] = sum(answer[passes] for answer in answers) / len(answers)
            self.timed[which] = times
        return self.timed[which]
