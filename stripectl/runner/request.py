"""What a bench is asked, and what of it the target decides."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from stripectl.core.defaults import tiles_for, with_mesh, with_tile
from stripectl.core.kernel import kernels
from stripectl.core.layer_groups import join_plans, layer_groups
from stripectl.core.method import Method, MethodChoice
from stripectl.core.plan import DEFAULT_KERNELS, Plan
from stripectl.core.scheme import schemes
from stripectl.core.workload import STEP, Workload
from stripectl.errors import StripectlError
from stripectl.hardware.profile import Hardware
from stripectl.measure.device_pool import LocalTarget
from stripectl.measure.sampler import SamplingOptions
from stripectl.results.measurement import Measurement
from stripectl.runner.meshes import DEFAULT_REFINE_COUNT, every_mesh
from stripectl.runner.static_facts import why_refused, why_scores_exceed_memory, with_static_facts

SMALL_LEN = 2**14  # of the small ring measured here: long enough that tiles, not messages, take the time
SMALL_HEADS = 4


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a bench is asked. Plans without a mesh get the target's devices on their scheme's axes."""

    workloads: Sequence[Workload]
    plans: Sequence[Plan]
    target: str = "local"
    hardware: Hardware | None = None
    method: MethodChoice = "auto"
    sampling: SamplingOptions = field(default_factory=SamplingOptions)
    flags: Sequence[Mapping[str, str]] = ({},)  # of the compiler: each plan with each of them
    find_max_length: bool = False  # find the longest sequence each plan fits, in place of the workloads' own
    use_cache: bool = True  # take from the disk what was compiled before
    previous: Sequence[Measurement] = ()  # of a run that is resumed: not made again
    default_dtype: bool = False  # nobody asked for a dtype: float32 on CPU, as given elsewhere
    default_kernel: bool = False  # nobody asked for a kernel: the one that users of the target have
    default_size: bool = False  # nobody asked for a length or heads: those of the small ring on CPU, as given elsewhere
    baseline: bool = True  # also run the single-device baseline
    every_mesh: bool = False  # in place of the usual mesh, every one that the target's devices make
    every_tile: bool = False  # in place of the default tile, every one of the kernel, the same for both passes
    refine_count: int = DEFAULT_REFINE_COUNT  # plans of those that are compiled or measured

    @cached_property
    def previous_by_key(self) -> dict[tuple[str, ...], Measurement]:
        """What is done, by key."""
        return {m.key: m for m in self.previous}

    @property
    def is_search(self) -> bool:
        """Whether all plans are simulated first, to find those that are worth more."""
        return self.every_mesh or self.every_tile

    def resolve_for(self, place: LocalTarget) -> "Request":
        """The request with what nobody asked for decided by what the target turned out to be."""
        if place.target.hardware.kind != "cpu":
            return self
        own: dict[str, Any] = {"dtype": "float32"} if self.default_dtype else {}
        small = {"seq_len": SMALL_LEN, "heads": SMALL_HEADS, "kv_heads": SMALL_HEADS, "model": None}
        workloads = [
            replace(workload, **own, **(small if self.default_size and workload.passes != STEP else {}))
            for workload in self.workloads
        ]
        return replace(self, workloads=workloads, default_dtype=False, default_size=False)

    def with_meshes(self, plan: Plan, place: LocalTarget) -> list[Plan]:
        """The plan with every mesh that is asked for; one without a mesh stands for the usual."""
        return list(every_mesh(plan, place.target.devices)) if self.every_mesh and plan.mesh is None else [plan]

    def with_tiles(self, plan: Plan, workload: Workload, place: LocalTarget) -> list[Plan]:
        """A plan on its mesh with every tile that is asked for; one without a tile stands for the default."""
        hardware = place.target.hardware
        if not self.every_tile or plan.tile or why_refused(plan, workload, hardware, place.target.devices):
            return [plan]
        return [replace(plan, tile=tile) for tile in tiles_for(plan, workload, hardware.kind)]

    def with_mesh_and_kernel(self, plan: Plan, workload: Workload, place: LocalTarget) -> Plan:
        """The plan with its mesh named, and with the kernel that users of the target have where nobody asked for one,
        unless only the plan's own can compute the workload."""
        own = with_mesh(plan, place.target.devices)
        if not self.default_kernel:
            return own
        return join_plans(
            [self.with_default_kernel(each, alike, place) for _, alike, each in layer_groups(workload, own)]
        )

    @staticmethod
    def with_default_kernel(own: Plan, workload: Workload, place: LocalTarget) -> Plan:
        """The plan of layers that are alike with the kernel that users of the target have; where that cannot compute
        them, with the kernel that takes its place, or the plan's own."""
        hardware = place.target.hardware
        users, able = kernels[hardware.kernel], schemes[own.scheme].kernel_families
        family = workload.attention if workload.attention in able else able[0]
        own = replace(own, kernel=DEFAULT_KERNELS[family])
        names = [users.name, users.fallback or own.kernel, own.kernel] if users.family == family else [own.kernel]
        plans = [replace(own, kernel=name) for name in dict.fromkeys(names)]
        return next((each for each in plans if not why_refused(each, workload, hardware)), plans[0])


def make_case(
    workload: Workload,
    plan: Plan,
    flags: Mapping[str, str],
    place: LocalTarget,
    method: Method,
    *,
    describe: bool = True,
) -> Measurement:
    """The measurement to be made of a plan with its mesh: its tile is named, or it is refused, or fails, with the
    reason. What arithmetic says of it takes as long as a simulation, which may `describe` it too."""
    hardware = place.target.hardware
    reason = why_refused(plan, workload, hardware, place.target.devices) or why_scores_exceed_memory(
        workload, plan, hardware
    )
    full = plan if reason else with_tile(plan, workload, hardware.kind)
    case = Measurement(workload=workload, plan=full, target=place.target.name, method=method, flags=flags or None)
    if reason:
        return replace(case, status="refused", reason=reason)
    if not describe:
        return case
    try:
        return with_static_facts(case, hardware)
    except StripectlError:
        raise
    except Exception as error:  # a scheme may be anybody's code; one that breaks must not take the others along
        reason = f"its program fails on clocks: {type(error).__name__}: {error}"
        return replace(case, status="failed", reason=reason)
