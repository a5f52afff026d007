"""Plans compiled ahead of time for a target: the compiler's report, cached on disk, and the time predicted from it."""

import math
import os
import re
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from stripectl.compile.cost_model import compiled_cost_model
from stripectl.compile.toolchain import TOOLCHAINS, Toolchain, topology_arguments
from stripectl.core.kernel import kernels
from stripectl.core.layer_groups import layer_groups
from stripectl.core.plan import Plan
from stripectl.core.workload import STEP, Workload
from stripectl.errors import BadInput, Missing
from stripectl.hardware.placement import place_mesh
from stripectl.hardware.profile import Hardware
from stripectl.hardware.target import Target
from stripectl.hlo.llo_bundles import dump_flags
from stripectl.results.environment import FLAGS, version
from stripectl.results.fit import TRY_SMALLER, check_memory
from stripectl.results.measurement import Measurement
from stripectl.simulate.cost_entries import CostKey, canonical_program, entries_of, masks_of, source_of
from stripectl.simulate.cost_tables import PassCosts, shapes_of, shipped_costs
from stripectl.simulate.sensitivity import with_sensitivity
from stripectl.simulate.simulation import simulate
from stripectl.simulate.step_memory import step_memory
from stripectl.simulate.training_step import PREDICTED, attention_cost_source, compiled_step
from stripectl.util import disk_cache
from stripectl.util.progress import Say
from stripectl.workers.failure import failure_reason
from stripectl.workers.worker_group import WorkerError, WorkerGroup

COMPILE_TIMEOUT_S = 600.0  # for one plan
FLAG_LISTS = {"XLA_FLAGS", "LIBTPU_INIT_ARGS"}  # variables whose new flags are added to their present value
CHIPS = 4  # of the smallest slice that every TPU compiler supports
BYTES_OF_UNIT = {"K": 2**10, "M": 2**20, "G": 2**30}
OUT_OF_MEMORY = re.compile(r"(?i)resource_?exhausted|out of memory")
NEEDS = re.compile(r"(?i)(?:required for[^(]*\(|used )([\d.]+)([KMG])")
HAS = re.compile(r"(?i)(?:available[^(]*\(|of )([\d.]+)([KMG])")


@dataclass
class CompilerPool:
    """The compiling workers of a command, by kind of hardware, which end together."""

    say: Say
    limit_s: float = COMPILE_TIMEOUT_S
    cached: bool = True  # use reports that are on disk
    sets: dict[tuple[str, str | None], WorkerGroup] = field(default_factory=dict)
    folders: ExitStack = field(default_factory=ExitStack)
    shapes: dict[tuple[str, CostKey], PassCosts | None] = field(default_factory=dict)

    def __enter__(self) -> "CompilerPool":
        return self

    def __exit__(self, *exception: object) -> None:
        for each in self.sets.values():
            each.stop()
        self.folders.close()

    def toolchain(self, target: Target) -> Toolchain:
        """The compiler for a target.

        Raises:
            Missing: it is not installed, or its version does not match this JAX.
        """
        found = TOOLCHAINS.get(target.hardware.kind)
        if found is None:
            raise Missing(f"{target} is compiled only where it runs. Try --method measured.")
        if found.missing:
            raise Missing(f"cannot compile for {target} here: {found.missing}")
        return found

    def report(self, workload: Workload, plan: Plan, target: Target, flags: Mapping[str, str]) -> dict[str, Any]:
        """The compiler's report about a plan's program (`compile.session.Session.compile`), now or from the cache.

        Raises:
            Missing: the compiler is not installed.
            BadInput: the compiler does not support the target.
            WorkerError: it crashed, exceeded the time limit, or does not know a flag.
        """
        tools = self.toolchain(target)
        request = {
            "workload": workload.to_json(),
            "plan": str(plan),
            "topology": topology_arguments(target) | {"order": place_mesh(target, plan.mesh or ()).order},
            "flags": dict(flags),
        }
        around = {name: os.environ.get(name) for name in FLAGS}
        packages = ("jax", "jaxlib", *(package for package, _ in tools.packages))
        key = {**request, "versions": list(map(version, packages)), "around": around}
        if self.cached and isinstance(known := disk_cache.load(key), dict):
            return known
        alike = layer_groups(workload, plan)
        pallas = tools.kind == "tpu" and any(kernels[each.plan.kernel].bundles for each in alike)
        dump = self.dump if pallas and workload.passes != STEP else None
        found = self._set(tools, dump).ask("compile", self.limit_s, dump=dump, **request)[0]
        found |= {"compiler": tools.name}
        if "refused" not in found and (len(alike) > 1 or (pallas and workload.passes == STEP)):
            # A program with both kinds of layers mixes their tiles, and a dump of a whole step takes a GiB.
            alone = [self.report(own.one_layer("forward-backward"), each, target, flags) for _, own, each in alike]
            found["bundles"] = next((each["bundles"] for each in alone if each.get("bundles")), None)
            found |= {"alone": alone} if len(alike) > 1 else {}
            found = next((each for each in alone if "refused" in each), found)
        if not pallas or found.get("bundles") or "refused" in found:
            disk_cache.store(key, found)
        return found

    def costs(self, workload: Workload, plan: Plan, hardware: Hardware) -> dict[str, PassCosts] | None:
        """The costs of a plan's tiles by pass: from the table that ships, where it has their shape; else from small
        programs, compiled once; else from the nearest shapes in the table; None where there are none."""
        if kernels[plan.kernel].family != "softmax":
            return None
        near = shipped_costs(hardware, workload, plan)
        if near and not any("interpolated_from" in each.detail for each in near.values()):
            return near
        found = {passes: self.compiled_costs(shape, hardware) for passes, shape in shapes_of(workload, plan).items()}
        known = {passes: each for passes, each in found.items() if each and passes in each.by_pass}
        return known if len(known) == len(found) else near

    def compiled_costs(self, shape: CostKey, hardware: Hardware) -> PassCosts | None:
        """The costs of a shape from its canonical programs, compiled for the smallest slice that every compiler
        supports; None where they do not compile."""
        key = hardware.name, shape
        if key not in self.shapes:
            self.shapes[key] = self._compile_costs(shape, hardware)
        return self.shapes[key]

    def _compile_costs(self, shape: CostKey, hardware: Hardware) -> PassCosts | None:
        small = next((each for each in hardware.slices if math.prod(each) >= CHIPS), None)
        if hardware.kind != "tpu" or small is None:
            return None
        try:
            alike = [
                self.report(*canonical_program(shape, m), Target(hardware, small), {}) for m in masks_of(shape.kernel)
            ]
        except (BadInput, WorkerError):
            return None
        if any("refused" in each for each in alike):
            return None
        bundles = [kernel for each in alike for kernel in each.get("bundles") or ()]
        entries = entries_of(alike[0] | {"bundles": bundles}, shape, hardware)
        made_by = {"made_by": alike[0]["compiler"], "program": str(canonical_program(shape)[1])}
        return PassCosts(entries, source_of(shape.kernel), made_by)

    @cached_property
    def dump(self) -> str:
        """The folder where a compiler is to leave its bundles, which is set when it starts."""
        return self.folders.enter_context(tempfile.TemporaryDirectory(prefix="stripectl-bundles-"))

    def _set(self, tools: Toolchain, dump: str | None) -> WorkerGroup:
        """The worker of a compiler, started beforehand so that no plan's time includes the start."""
        own = {"LIBTPU_INIT_ARGS": dump_flags(Path(dump))} if dump else {}
        variables = {**tools.environment, **own}
        for name in variables.keys() & FLAG_LISTS:
            variables[name] = f"{os.environ.get(name, '')} {variables[name]}".strip()
        found = self.sets.setdefault((tools.kind, dump), WorkerGroup(session="compile", variables=variables))
        if not found.workers:
            found.ask("ready")
        return found


def compile_case(case: Measurement, target: Target, compilers: CompilerPool) -> Measurement:
    """The case with the compiler's report; refused where the compiler rejects the plan."""
    if case.status != "ok":
        return case
    case, plan = replace(case, method="compiled"), case.plan
    try:
        facts = compilers.report(case.workload, plan, target, case.flags or {})
        if "refused" in facts:
            needs, has = refused_memory(facts["refused"])
            reason = refusal(facts["refused"], compilers.toolchain(target))
            return replace(case, status="refused", reason=reason, peak_bytes=needs, hbm_bytes=has or case.hbm_bytes)
        return with_predicted_time(with_facts(case, facts, target), target, facts, compilers)
    except BadInput as error:
        return replace(case, status="refused", reason=str(error))
    except WorkerError as failure:
        reason, status = failure_reason(failure)
        return replace(case, status=status, reason=reason if failure.group_alive else f"the compiler {reason}")


def with_facts(case: Measurement, facts: Mapping[str, Any], target: Target) -> Measurement:
    """The case with the compiler's facts about its program, and the time of its copies; refused where the program does
    not fit in memory."""
    told = ("compiler", "collectives", "rewrites", "copies", "cycles", "beside", "bundles")
    copies, rate = facts["copies"], target.hardware.figure("hbm_bytes_per_s")
    takes = 2 * copies["bytes_per_round"] / rate if rate else None  # a copy reads and writes
    case = replace(
        case,
        compile_s=facts["compile_s"],
        bytes=facts["bytes"],
        peak_bytes=facts["peak_bytes"],
        compiled_program={name: facts[name] for name in told} | {"copies": copies | {"s_per_round": takes}},
    )
    return check_memory(case)


def with_predicted_time(
    case: Measurement, target: Target, facts: Mapping[str, Any], compilers: CompilerPool
) -> Measurement:
    """The case with the simulated time from the compiler's cycles and schedule; without a time where the hardware's
    profile lacks a figure that this needs."""
    if case.status != "ok":
        return case
    plan = case.plan
    try:
        wired, alike = place_mesh(target, plan.mesh or ()), layer_groups(case.workload, plan)
        alone = facts.get("alone", [facts])
        machines = [
            compiled_cost_model(target.hardware, own, each, said, wired, compilers.costs(own, each, target.hardware))
            for (_, own, each), said in zip(alike, alone, strict=True)
        ]
    except BadInput as error:  # the compiler's facts are valid without a time
        return replace(case, cost_source={"source": "none", "left_out": str(error)})
    case = replace(case, cost_source=attention_cost_source(machines) | {"predicted": True})
    if case.workload.passes == STEP:
        case = replace(case, memory=step_memory(case.workload, plan, target.hardware.kind))
        return compiled_step(case, target.hardware, machines, facts)
    machine, kind = machines[0], target.hardware.kind
    found = simulate(case.workload, plan, machine)
    overlap = found.overlap and found.overlap.to_json(PREDICTED)
    return with_sensitivity(replace(case, median_s=found.seconds, overlap=overlap), plan, machine, found, kind)


def refused_memory(message: str) -> tuple[int | None, int | None]:
    """(bytes needed, bytes available) from the compiler's message, where it ran out of memory."""
    if not OUT_OF_MEMORY.search(message):
        return None, None
    needs, has = NEEDS.search(message), HAS.search(message)
    sizes = [int(float(found[1]) * BYTES_OF_UNIT[found[2]]) if found else None for found in (needs, has)]
    return sizes[0], sizes[1]


def refusal(message: str, tools: Toolchain) -> str:
    """Why the compiler rejects a plan, in its own words, and the next step."""
    if "Mosaic" in message:
        return f"{tools.name} does not compile this kernel: {message[:300]} Try --kernel xla, or another --tile."
    words = message.partition(": ")[2] or message
    needs, has = refused_memory(message)
    if needs and has:
        over = (needs - has) / 2**30
        return f"does not fit: needs {over:.2f} GiB more memory. {tools.name}: {words[:300]} {TRY_SMALLER}"
    return f"{tools.name}: {words[:400]}"
