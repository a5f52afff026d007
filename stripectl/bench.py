"""Times plans side by side, each by the strongest method that its target and the budget allow.

A target is here or not. Here, plans are measured where they fit the devices and the budget; otherwise they are
simulated, from tiles timed here or from the datasheet of a machine that is not here. A bench of a machine with less
than a ring to offer ends with the small ring it can run, measured beside its own simulation.
"""

import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from stripectl import BadInput, Missing
from stripectl.bounds import attention_speedup, layer_speedup, ring_work
from stripectl.calibrate import HOP_BYTES, blocks_for, datasheet_machine, fit_hop, measured_machine
from stripectl.environment import cores
from stripectl.hardware import Hardware, named_by_device
from stripectl.launch import DeviceSet, PlanFailed
from stripectl.layout import MASKS, Tile, layouts
from stripectl.measurement import Measurement
from stripectl.plan import SEQUENCE_AXES, Plan, make_mesh, parse_plan, unsupported, with_tile
from stripectl.sampling import Effort, Say, measure
from stripectl.scheme import schemes
from stripectl.simulate import Machine, Simulation, TileCost, simulate
from stripectl.topology import Target, parse_target
from stripectl.workload import Model, Workload

RING = 8  # devices of the ring that a machine without one is asked about: a node of GPUs, the papers' smallest slices
SMALL_LEN = 2**14  # of the small ring measured here: long enough that tiles, not messages, take the time
SMALL_SHARE = 0.45  # of what is left of the budget, for sampling it


@dataclass(frozen=True)
class Place:
    """A target, how much of it is here, and the processes that drive what is here."""

    target: Target
    here: int = 0
    processes: int | None = None


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a bench is asked. Plans without a mesh get the target's devices on their scheme's axes."""

    workloads: Sequence[Workload]
    plans: Sequence[Plan]
    target: str = "local"
    hardware: Hardware | None = None
    method: str = "auto"
    effort: Effort = field(default_factory=Effort)


def default_mesh(plan: Plan, devices: int) -> Plan:
    """The plan with every device on its scheme's axes, the most balanced factorisation, larger factors first."""
    if plan.mesh:
        return plan
    axes = [axis for axis in schemes[plan.scheme].axes if axis in SEQUENCE_AXES]
    sizes = min(
        (sizes for sizes in itertools.product(range(1, devices + 1), repeat=len(axes)) if _product(sizes) == devices),
        key=lambda sizes: (max(sizes) - min(sizes), [-size for size in sizes]),
    )
    return replace(plan, mesh=make_mesh(dict(zip(axes, sizes, strict=True))))


def _product(sizes: Sequence[int]) -> int:
    total = 1
    for size in sizes:
        total *= size
    return total


def cases(request: Request, place: Place) -> list[Measurement]:
    """One measurement to be made a workload and plan, refused ones with their reason; tile and mesh are named."""
    hardware, devices = place.target.hardware, place.target.devices
    found = []
    for workload in request.workloads:
        for plan in request.plans:
            meshed = default_mesh(plan, devices)
            reason = unsupported(meshed, workload, hardware.kind, devices)
            full = meshed if reason else with_tile(meshed, workload, hardware.kind)
            method = "simulated" if request.method == "auto" else request.method
            case = Measurement(workload=workload, plan=str(full), target=str(place.target), method=method)
            if reason:
                found.append(replace(case, status="refused", reason=reason))
            else:
                found.append(described(case, hardware))
    return found


def described(case: Measurement, hardware: Hardware) -> Measurement:
    """The case with what arithmetic says of it: tiles, bytes a device sends, bounds, memory there is."""
    plan, workload = parse_plan(case.plan), case.workload
    counted = simulate(workload, plan, COUNTING)
    forward = [each.tiles.computed.tolist() for each in counted.rounds if each.passes == "forward"]
    computed, assert_tile = sum(map(sum, forward)), plan.tile or Tile(1, 1)
    memory = hardware.figure("hbm_bytes")
    return replace(
        case,
        tiles={
            "tile": str(plan.tile),
            "computed": computed,
            "useful": workload.pairs,
            "efficiency": workload.pairs / (computed * assert_tile.block_q * assert_tile.block_kv),
            "per_round": [list(device) for device in zip(*forward, strict=True)],
        },
        bytes=counted.sent,
        bound=bounds_of(workload, plan),
        hbm_bytes=int(memory) if memory else None,
        peak_flops_per_s=hardware.flops_per_s(workload.dtype),
    )


COUNTING = Machine(TileCost(1.0, 1.0), TileCost(1.0, 1.0), 0.0, 1.0, True, "datasheet")


def bounds_of(workload: Workload, plan: Plan) -> dict[str, float | None]:
    """The best speed-up over the contiguous layout on the same mesh: of attention, and of a whole layer of the model."""
    layout, rows, tile = layouts[plan.layout], workload.seq_len // plan.shards, plan.tile or Tile(1, 1)
    if layouts["contiguous"].unsupported(workload.seq_len, plan.shards):
        return {"attention_only": None, "layer": None}
    attention = attention_speedup(layout, plan.shards, rows, workload.window, tile)
    if workload.model is None:
        return {"attention_only": attention, "layer": None}
    slow, fast = (
        float(ring_work(each, plan.shards, rows, MASKS[workload.mask], tile).critical_tiles) * tile.block_q * tile.block_kv
        for each in (layouts["contiguous"], layout)
    )
    model = Model.load(workload.model)
    return {"attention_only": attention, "layer": layer_speedup(model, workload.seq_len, plan.shards, (slow, fast), 1.0, "swiglu")}


def find_place(request: Request, devices: "Devices") -> Place:
    """The target by its name; `local` is asked what it has.

    Raises:
        BadInput, Missing: not a target, or no devices.
    """
    if request.target != "local":
        target = parse_target(request.target, request.hardware)
        if target.hardware.kind == "cpu":
            here = min(target.devices, len(cores()))
            return Place(target, here if here == target.devices else 0, here)
        return Place(target)
    found = devices.probe()
    if found["platform"] == "cpu":
        hardware = request.hardware or Hardware.load("cpu")
        count = len(cores())
        return Place(Target(hardware, (max(RING, count) if count == 1 else RING,)), count, count)
    known = request.hardware or named_by_device(found["kind"])
    if known is None:
        raise Missing(
            f"no hardware profile knows {found['kind']!r}. Write one: stripectl topology --measure, then --hardware FILE."
        )
    return Place(Target(known, (found["count"] if found["count"] > 1 else RING,)), found["count"])


class Devices:
    """The device sets a bench has started, and what was timed on them; ended together."""

    def __init__(self, say: Say) -> None:
        self.say = say
        self.sets: dict[int | None, DeviceSet] = {}
        self.machines: dict[Any, Machine] = {}
        self.hops: dict[int | None, tuple[float, float] | None] = {}

    def __enter__(self) -> "Devices":
        return self

    def __exit__(self, *exception: object) -> None:
        for each in self.sets.values():
            each.stop()

    def of(self, processes: int | None) -> DeviceSet:
        if processes not in self.sets:
            self.sets[processes] = DeviceSet(processes)
        return self.sets[processes]

    def probe(self) -> dict[str, Any]:
        """What JAX finds on this machine."""
        self.say("look for devices", 0, 1)
        try:
            return self.of(None).ask("devices")[0]
        except PlanFailed as failure:
            raise Missing(f"JAX found no device here: {failure}. Run stripectl doctor.") from failure

    def hop(self, processes: int | None, count: int) -> tuple[float, float] | None:
        """(latency, rate) of a hop between the devices here, or None where there is one."""
        if processes not in self.hops:
            timed = []
            for done, nbytes in enumerate(HOP_BYTES if count > 1 else ()):
                self.say(f"time a hop of {nbytes >> 10} KiB", done, len(HOP_BYTES))
                timed.append(max(self.of(processes).ask("time_hop", nbytes=nbytes)))
            self.hops[processes] = fit_hop(HOP_BYTES, timed) if timed else None
        return self.hops[processes]

    def machine(self, place: Place, workload: Workload, plan: Plan) -> Machine:
        """What tiles and hops cost: timed here where the target's device is here, else from its datasheet."""
        hardware, tile = place.target.hardware, plan.tile
        assert tile
        if place.processes is None and not place.here:
            return datasheet_machine(hardware, workload, tile)
        group = workload.heads // workload.kv_heads
        which = (place.processes, plan.kernel, tile, group, workload.head_dim, workload.dtype)
        if which not in self.machines:
            self.machines[which] = self._calibrate(place, plan.kernel, tile, group, workload)
        return self.machines[which]

    def _calibrate(self, place: Place, kernel: str, tile: Tile, group: int, workload: Workload) -> Machine:
        fitted, held_out = blocks_for(tile)
        times: dict[str, dict[Any, float]] = {"forward": {}, "backward": {}}
        shape = {"group": group, "head_dim": workload.head_dim, "dtype": workload.dtype}
        for done, block in enumerate([*fitted, held_out]):
            self.say(f"time tiles of {tile}: {block.rows} {block.band}", done, len(fitted) + 1)
            answers = self.of(place.processes).ask(
                "time_block", 600, kernel=kernel, tile=str(tile), rows=block.rows, band=block.band, **shape
            )
            for passes, known in times.items():
                known[block] = sum(answer[passes] for answer in answers) / len(answers)
        hop = self.hop(place.processes, place.here)
        if hop is None and (link := place.target.hardware.figure("link_bytes_per_s_one_way")):
            hop = (place.target.hardware.figure("hop_latency_s") or 0.0, link)
        return measured_machine(times, tile, group, hop, place.target.hardware.overlaps)


def simulated(case: Measurement, machine: Machine) -> Measurement:
    result: Simulation = simulate(case.workload, parse_plan(case.plan), machine)
    calibration = {"source": machine.source, **machine.detail}
    return replace(case, method="simulated", median_s=result.seconds, calibration=calibration)


def bench(request: Request, say: Say) -> Iterator[Measurement]:
    """Measurements in the order of workloads and plans, then the small ring where there is one.

    Raises:
        BadInput: nothing is left to run.
        Missing: the target is not here and was to be measured.
    """
    started = time.monotonic()

    def left_s() -> float:
        return max(0.0, request.effort.budget_s - (time.monotonic() - started))

    with Devices(say) as devices:
        place = find_place(request, devices)
        wanted = cases(request, place)
        if all(case.status == "refused" for case in wanted):
            raise BadInput(f"nothing is left to run. {wanted[0].plan}: {wanted[0].reason}")
        baselines = one_device(request, place, wanted) if request.method != "measured" else []
        for index, workload in enumerate(request.workloads):
            share_s = left_s() / (len(request.workloads) - index)
            group = [case for case in wanted if case.workload == workload]
            yield from by_method(request, place, group, devices, share_s, say)
            yield from by_method(request, place, [case for case in baselines if case.workload == workload], devices, 0.0, say)
        if request.target == "local" and 1 < place.here < place.target.devices and request.method == "auto":
            yield from small_ring(request, place, devices, left_s, say)


def one_device(request: Request, place: Place, wanted: Sequence[Measurement]) -> list[Measurement]:
    """The single-device flash-style baseline of every workload: the kernel of its first plan on one device."""
    found = []
    for workload in request.workloads:
        first = next((case for case in wanted if case.workload == workload and case.status == "ok"), None)
        if first is None or parse_plan(first.plan).devices == 1:
            continue
        plan = replace(parse_plan(first.plan), scheme="ring", layout="contiguous", mesh=())
        case = Measurement(workload=workload, plan=str(plan), target=str(Target(place.target.hardware, (1,))), method="simulated")
        found.append(described(case, place.target.hardware))
    return found


def by_method(
    request: Request, place: Place, group: Sequence[Measurement], devices: Devices, budget_s: float, say: Say
) -> Iterator[Measurement]:
    """The cases of one workload, each by its method. Those that are measured are sampled in turns."""
    runnable = [case for case in group if case.status == "ok"]
    fits = [case for case in runnable if parse_plan(case.plan).devices <= place.here]
    if request.method == "measured" and len(fits) < len(runnable):
        raise Missing(
            f"{place.target} is not here, so it cannot be measured. Try --method simulated"
            + (f", or --target cpu:{len(cores())}." if place.target.hardware.kind == "cpu" else ".")
        )
    to_measure = fits if request.method == "measured" else []
    estimates: dict[int, Measurement] = {}
    if request.method != "measured":
        for case in runnable:
            estimates[id(case)] = simulated(case, devices.machine(place, case.workload, parse_plan(case.plan)))
        turn_s = sum(estimates[id(case)].median_s or 0.0 for case in fits)
        if request.method == "auto" and fits and turn_s * (request.effort.min_samples + request.effort.warmup) <= budget_s:
            to_measure = fits
    asked = [replace(case, method="measured") for case in to_measure]
    results = measure(devices.of(place.processes), asked, request.effort, budget_s, say) if asked else iter(())
    for case in group:
        if case.status != "ok":
            yield case
        elif case in to_measure:
            yield next(results)
        else:
            yield estimates[id(case)]


def small_ring(request: Request, place: Place, devices: Devices, left_s: Any, say: Say) -> Iterator[Measurement]:
    """The ring that this machine can run, measured, and the same ring simulated from the same tiles."""
    target = Target(place.target.hardware, (place.here,))
    local = replace(place, target=target)
    plans = [replace(plan, mesh=()) for plan in request.plans]
    first = request.workloads[0]
    passes = list(dict.fromkeys(workload.passes for workload in request.workloads))

    def sized(seq_len: int, groups: int) -> tuple[list[Measurement], float]:
        heads = groups * (first.heads // first.kv_heads)
        workloads = [
            replace(first, seq_len=seq_len, heads=heads, kv_heads=groups, batch=1, model=None, passes=each) for each in passes
        ]
        found = [case for case in cases(replace(request, workloads=workloads, plans=plans), local) if case.status == "ok"]
        for_each = [simulated(case, devices.machine(local, case.workload, parse_plan(case.plan))) for case in found]
        return for_each, sum(each.median_s or 0.0 for each in for_each)

    turns = request.effort.min_samples + request.effort.warmup
    for seq_len, groups in itertools.product((SMALL_LEN, SMALL_LEN // 2, SMALL_LEN // 4), (4, 2, 1)):
        if groups > first.kv_heads or seq_len > first.seq_len:
            continue
        expected, turn_s = sized(seq_len, groups)
        if expected and turn_s * turns <= SMALL_SHARE * left_s():
            asked = [replace(case, method="measured", median_s=None, calibration=None) for case in expected]
            yield from measure(devices.of(place.processes), asked, request.effort, SMALL_SHARE * left_s(), say)
            yield from expected
            return
