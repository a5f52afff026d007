"""The parts of a plan that its text omits: its layout, mesh, kernels and tiles.

Every command, the Python interface and training resolve them here. A part that is named stays.

- The layout is the default of the scheme.
- The mesh is all devices on the axes of the scheme, as balanced as possible.
- The kernel is the machine's, or else a kernel of the family that the workload needs.
- Layers with shorter windows than others have the scheme `halo` where that can compute them, else the others' scheme.
- The tile of each pass is the fastest by the machine's table, or by timings on the machine (`default_tiles`).
"""

from collections.abc import Mapping
from dataclasses import replace

from stripectl.core.defaults import with_mesh
from stripectl.core.kernel import kernels
from stripectl.core.layer_groups import join_plans, layer_groups, parts_of_plan
from stripectl.core.plan import DEFAULT_KERNELS, WINDOW_SCHEME, Plan
from stripectl.core.scheme import schemes
from stripectl.core.validation import why_unsupported
from stripectl.core.workload import Workload
from stripectl.costs.default_tiles import NO_FLAGS, TimedTile, with_tile
from stripectl.hardware.profile import Hardware


def with_defaults(
    plan: Plan,
    workload: Workload,
    hardware: Hardware,
    devices: int | None = None,
    flags: Mapping[str, str] = NO_FLAGS,
    timed: TimedTile | None = None,
) -> Plan:
    """Name all parts of a plan, on `devices` devices where it has no mesh. Compiler `flags` may change the
    memory of a core, and so its tiles. A plan that cannot compute the workload gets no tile."""
    named = with_names(plan, workload, hardware, devices)
    if why_unsupported(named, workload, hardware.kind, devices, hardware.capability):
        return named
    return with_tile(named, workload, hardware, flags, timed)


def with_names(plan: Plan, workload: Workload, hardware: Hardware, devices: int | None = None) -> Plan:
    """Name the layout, the mesh and the kernels of a plan; where `devices` is None the mesh stays as it is."""
    laid = replace(plan, layout=plan.layout or schemes[plan.scheme].default_layout)
    meshed = laid if devices is None else with_mesh(laid, devices)
    groups, parts = layer_groups(workload, meshed), parts_of_plan(workload).values()
    plans = [
        with_windows(each, own, hardware)
        if part == "sliding" and plan.sliding is None
        else with_machine_kernel(each, own, hardware)
        for part, (_, own, each) in zip(parts, groups, strict=True)
    ]
    return join_plans(workload, plans)


def with_windows(plan: Plan, workload: Workload, hardware: Hardware) -> Plan:
    """The plan of layers with shorter windows than others, from the plan of these: the first that can compute them of
    WINDOW_SCHEME, where it shards hidden states as its own scheme does, and its own scheme, each with its own kernel
    and with the machine's."""
    for scheme in dict.fromkeys((WINDOW_SCHEME, plan.scheme)):
        if schemes[scheme].row_axes != schemes[plan.scheme].row_axes:
            continue
        own = replace(plan, scheme=scheme, parts=plan.parts if scheme == plan.scheme else 1)
        for each in (own, replace(own, kernel="", tile=None, backward=None)):
            named = with_machine_kernel(each, workload, hardware)
            if not why_unsupported(named, workload, hardware.kind, None, hardware.capability):
                return named
    return with_machine_kernel(plan, workload, hardware)


def with_machine_kernel(plan: Plan, workload: Workload, hardware: Hardware) -> Plan:
    """Name the kernel of a plan of equal layers: the first that can compute them of the machine's kernel, or where
    it is of another family the fast kernels of the family; the kernels in their place; and the reference loop, whose
    reason to refuse is the plainest where none of them can."""
    if plan.kernel:
        return plan
    own, families = kernels[hardware.kernel], schemes[plan.scheme].kernel_families
    needed = workload.kernel_family
    family = needed if needed in families or workload.attention == "linear" else families[0]
    fast = [each for each in map(kernels.__getitem__, kernels.names()) if each.family == family and each.fallback]
    usual = [own] if own.family == family else fast
    names = dict.fromkeys([*(name for each in usual for name in (each.name, each.fallback)), DEFAULT_KERNELS[family]])
    plans = [replace(plan, kernel=name) for name in names if name]
    able = (each for each in plans if not why_unsupported(each, workload, hardware.kind, None, hardware.capability))
    return next(able, plans[-1])
