"""Plans compiled ahead of time for a target: the compiler's report, cached on disk, and the time predicted from it."""

import math
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from stripectl.compile.cost_model import compiled_cost_model
from stripectl.compile.report import CompilerReport
from stripectl.compile.toolchain import TOOLCHAINS, Toolchain, check_described, topology_arguments
from stripectl.core.intervals import Overlap
from stripectl.core.kernel import kernels
from stripectl.core.layer_groups import LayerGroup, layer_groups, mean_bytes, mean_of_layers
from stripectl.core.plan import Plan
from stripectl.core.reason import Reason, ReasonKind
from stripectl.core.workload import STEP, Workload
from stripectl.costs.cost_model import CostModel
from stripectl.costs.determinism import with_determinism
from stripectl.costs.shape import TileShape, shapes_of
from stripectl.costs.sources.entries import Entry, effective_clock_hz, entry_cost_model
from stripectl.costs.sources.small_programs import (
    CANONICAL_TILES,
    FEW_TILES,
    TileCycles,
    canonical_program,
    entries_of,
    has_tile_costs,
    masks_of,
    source_of,
)
from stripectl.errors import BadInput, Missing
from stripectl.hardware.placement import place_mesh
from stripectl.hardware.profile import Hardware
from stripectl.hardware.target import Target
from stripectl.hlo.llo_bundles import dump_flags
from stripectl.results.case import Case
from stripectl.results.cost_source import CostOrigin, CostSource, TableSource
from stripectl.results.environment import FLAGS, version
from stripectl.results.findings import CommunicationOverlap
from stripectl.results.fit import TRY_SMALLER, check_memory
from stripectl.results.measurement import Measurement
from stripectl.results.records import read_record, record_json
from stripectl.simulate.compiled_step import compiled_step
from stripectl.simulate.sensitivity import with_sensitivity
from stripectl.simulate.simulation import simulate
from stripectl.simulate.step_memory import step_memory
from stripectl.simulate.step_state import uncomputed_bytes
from stripectl.simulate.training_step import PREDICTED, attention_cost_source
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
VMEM = re.compile(r"with size ([\d.]+)M and limit ([\d.]+)M exceeded scoped vmem|Used ([\d.]+)M of ([\d.]+)M vmem")


class SmallProgram(NamedTuple):
    """The cycles of a tile by pass, and the program that has them."""

    cycles: Mapping[str, TileCycles]
    source: TableSource


@dataclass
class CompilerPool:
    """The compiling workers of a command, by kind of hardware, which end together."""

    say: Say
    limit_s: float = COMPILE_TIMEOUT_S
    cached: bool = True  # use reports that are on disk
    sets: dict[tuple[str, str | None], WorkerGroup] = field(default_factory=dict)
    folders: ExitStack = field(default_factory=ExitStack)
    shapes: dict[tuple[str, TileShape], SmallProgram | None] = field(default_factory=dict)

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
            BadInput: it cannot compile for the target.
        """
        found = TOOLCHAINS.get(target.hardware.kind)
        if found is None:
            raise Missing(f"{target} is compiled only where it runs. Try --method measured.")
        check_described(target)
        if found.missing:
            raise Missing(f"cannot compile for {target} here: {found.missing}")
        return found

    def report(self, workload: Workload, plan: Plan, target: Target, flags: Mapping[str, str]) -> CompilerReport:
        """The compiler's report about a plan's program, now or from the cache.

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
        packages = ("jax", "jaxlib", "tokamax", *(package for package, _ in tools.packages))
        key = {**request, "versions": list(map(version, packages)), "around": around}
        if self.cached and (known := self._kept(key)):
            return known
        alike = layer_groups(workload, plan)
        if len(alike) > 1 and workload.passes != STEP:
            return mean_report(alike, [self.report(own, each, target, flags) for _, own, each in alike])
        pallas = tools.kind == "tpu" and any(kernels[each.plan.kernel].costs.bundles for each in alike)
        dump = self.dump if pallas and workload.passes != STEP else None
        answer = self._set(tools, dump).ask("compile", self.limit_s, dump=dump, **request)[0]
        found = read_record(CompilerReport, answer)
        if found.refused is None:
            found = replace(found, program=replace(found.program, compiler=tools.name))
            if len(alike) > 1 or (pallas and workload.passes == STEP):
                alone = [self.report(own.one_layer("forward-backward"), each, target, flags) for _, own, each in alike]
                found = with_layers_alone(found, alone)
        if not pallas or found.program.bundles or found.refused:
            disk_cache.store(key, record_json(found))
        return found

    def _kept(self, key: Mapping[str, object]) -> CompilerReport | None:
        try:
            return read_record(CompilerReport, known) if (known := disk_cache.load(key)) else None
        except TypeError:  # the cache may be anybody's
            return None

    def small_programs(self, hardware: Hardware, workload: Workload, plan: Plan) -> CostModel | None:
        """A machine with the cycles of a plan's tiles in small programs; None where they do not compile."""
        if not has_tile_costs(kernels[plan.kernel]):
            return None
        known = dict[str, Entry]()
        for passes, shape in shapes_of(workload, plan).items():
            found = self.small_program(shape, hardware)
            if found is None or passes not in found.cycles:
                return None
            cost = found.cycles[passes].cost(effective_clock_hz(hardware, workload.dtype))
            known[passes] = Entry(cost, source_of(shape.computed_by), found.source)
        return entry_cost_model(hardware, workload, plan, known)

    def small_program(self, shape: TileShape, hardware: Hardware) -> SmallProgram | None:
        """The cycles of a shape in its canonical programs, compiled for the smallest slice that every compiler
        supports; None where they do not compile."""
        canonical = TileShape(shape.computed_by.name, shape.dtype, shape.heads, shape.tile, shape.recurrence)
        key = hardware.name, canonical
        if key not in self.shapes:
            self.shapes[key] = self._compile(canonical, hardware)
        return self.shapes[key]

    def _compile(self, shape: TileShape, hardware: Hardware) -> SmallProgram | None:
        small = next((each for each in hardware.slices if math.prod(each) >= CHIPS), None)
        if hardware.kind != "tpu" or small is None:
            return None
        # A tile may fit into a core's memory forward, and not backward.
        kernel, programs = kernels[shape.kernel], list[tuple[Workload, Plan]]()
        both = (CANONICAL_TILES, FEW_TILES) if kernel.costs.dq_sums else (CANONICAL_TILES,)
        tried = [*(("forward-backward", count) for count in both), ("forward", CANONICAL_TILES)]
        for passes, count in tried if kernel.computes("backward") == shape.kernel else tried[-1:]:
            programs = [canonical_program(shape, mask, passes, count) for mask in masks_of(shape.kernel)]
            try:
                alike = [self.report(*each, Target(hardware, small), {}) for each in programs]
            except (BadInput, WorkerError):
                continue
            if not any(each.refused for each in alike):
                break
        else:
            return None
        bundles = tuple(kernel for each in alike for kernel in each.program.bundles or ())
        program = alike[0].program
        cycles = entries_of(replace(program, bundles=bundles), shape, hardware)
        return SmallProgram(cycles, TableSource(made_by=program.compiler, program=str(programs[0][1])))

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


def mean_report(layers: Sequence[LayerGroup], alone: Sequence[CompilerReport]) -> CompilerReport:
    """The report about the mean layer of a model from the reports about its layers of each kind, or the report of a
    kind that is refused."""
    if refused := next((each for each in alone if each.refused), None):
        return refused
    return replace(
        alone[0],
        compile_s=math.fsum(each.compile_s for each in alone),
        peak_bytes=max((each.peak_bytes for each in alone if each.peak_bytes is not None), default=None),
        bytes=mean_bytes(layers, [each.bytes or {} for each in alone]),
        by_kind=tuple(each.program for each in alone),
    )


def with_layers_alone(whole: CompilerReport, alone: Sequence[CompilerReport]) -> CompilerReport:
    """The report about a model's program with the reports about its layers of each kind, or the report of a kind that
    is refused: a program with both kinds of layers mixes their tiles, and a dump of a whole step takes a GiB."""
    if refused := next((each for each in alone if each.refused), None):
        return refused
    bundles = next((own for each in alone if (own := each.program.bundles)), None)
    by_kind = tuple(each.program for each in alone) if len(alone) > 1 else ()
    return replace(whole, program=replace(whole.program, bundles=bundles), by_kind=by_kind)


def compile_case(case: Case, target: Target, compilers: CompilerPool) -> Measurement:
    """The case compiled, with the compiler's report; refused where the compiler rejects the plan."""
    made = Measurement.of(case, "compiled")
    if not case.is_ready:
        return made
    try:
        report = compilers.report(case.workload, case.plan, target, case.flags or {})
        if report.refused is not None:
            needs, has = refused_memory(report.refused)
            reason = refusal(report.refused, compilers.toolchain(target))
            return replace(made, status="refused", reason=reason, peak_bytes=needs, hbm_bytes=has or made.hbm_bytes)
        return with_predicted_time(with_report(made, report, target), target, report, compilers)
    except BadInput as error:
        return replace(made, status="refused", reason=Reason.unsupported(str(error)))
    except WorkerError as failure:
        reason, status = failure_reason(failure, "" if failure.group_alive else "the compiler ")
        return replace(made, status=status, reason=reason)


def with_report(m: Measurement, report: CompilerReport, target: Target) -> Measurement:
    """Add the compiler's facts about the program to a measurement, and the time of its copies; refused where the
    program does not fit in memory, together with the parameters of the model that it does not compute."""
    program, rate = report.program, target.hardware.figure("hbm_bytes_per_s")
    if program.copies and rate:  # a copy reads and writes
        copies = replace(program.copies, s_per_round=2 * program.copies.bytes_per_round / rate)
        program = replace(program, copies=copies)
    others = uncomputed_bytes(m.workload, m.plan) if m.workload.passes == STEP else 0
    peak = None if report.peak_bytes is None else report.peak_bytes + others
    m = replace(m, compile_s=report.compile_s, bytes=report.bytes, peak_bytes=peak, host_bytes=report.host_bytes)
    return check_memory(replace(m, compiled_program=program))


def with_predicted_time(m: Measurement, target: Target, report: CompilerReport, compilers: CompilerPool) -> Measurement:
    """Add the time that follows from the compiler's cycles and schedule; no time where the
    hardware's profile lacks a figure that this needs."""
    if m.status != "ok":
        return m
    plan = m.plan
    try:
        wired = place_mesh(target, plan.mesh or ())
        hardware, flags = target.hardware, m.flags or {}
        machines = [
            with_determinism(
                compiled_cost_model(hardware, own, each, said, wired, compilers.small_programs),
                *(hardware, own, each, flags),
            )
            for (_, own, each), said in zip(m.layers, report.kinds, strict=True)
        ]
    except BadInput as error:  # the compiler's facts are valid without a time
        return replace(m, cost_source=CostSource(source=CostOrigin.NONE, left_out=str(error)))
    m = replace(m, cost_source=replace(attention_cost_source(m.workload, machines), predicted=True))
    if m.workload.passes == STEP:
        m = replace(m, memory=step_memory(m.workload, plan, target.hardware.kind))
        return compiled_step(m, target.hardware, machines, report.program)
    found = [simulate(own, each, machine) for (_, own, each), machine in zip(m.layers, machines, strict=True)]
    seconds = mean_of_layers(m.layers, [each.seconds for each in found])
    overlap = CommunicationOverlap.predicted(mean_overlap(m.layers, [each.overlap for each in found]), PREDICTED)
    return with_sensitivity(replace(m, median_s=seconds, overlap=overlap), machines, target.hardware.kind)


def mean_overlap(layers: Sequence[LayerGroup], each: Sequence[Overlap | None]) -> Overlap | None:
    """The mean overlap over layers; None where nothing is sent."""
    if not any(each):
        return None
    known = [one or Overlap(0.0, 0.0) for one in each]
    return Overlap(
        mean_of_layers(layers, [one.hidden_s for one in known]),
        mean_of_layers(layers, [one.exposed_s for one in known]),
    )


def refused_memory(message: str) -> tuple[int | None, int | None]:
    """(bytes needed, bytes available) from the compiler's message, where it ran out of memory."""
    if not OUT_OF_MEMORY.search(message) or VMEM.search(message):
        return None, None
    needs, has = NEEDS.search(message), HAS.search(message)
    sizes = [int(float(found[1]) * BYTES_OF_UNIT[found[2]]) if found else None for found in (needs, has)]
    return sizes[0], sizes[1]


def refusal(message: str, tools: Toolchain) -> Reason:
    """Why the compiler rejects a plan, in its own words, and the next step."""
    if "Mosaic" in message:
        fact = f"{tools.name} does not compile this kernel: {message[:300].rstrip(' .')}"
        return Reason(ReasonKind.COMPILER, fact, "Try --kernel xla, or another --tile.")
    if found := VMEM.search(message):
        takes, gives = filter(None, found.groups())
        fact = f"a kernel takes {takes} MiB of a core's memory, and {tools.name} gives it {gives} MiB"
        return Reason(ReasonKind.MEMORY, fact, "Try a smaller --tile.")
    words = message.partition(": ")[2] or message
    needs, has = refused_memory(message)
    if needs and has:
        over = (needs - has) / 2**30
        said = f"{tools.name}: {words[:300].rstrip(' .')}"
        return Reason(ReasonKind.MEMORY, f"does not fit: needs {over:.2f} GiB more memory. {said}", TRY_SMALLER)
    kind = ReasonKind.MEMORY if OUT_OF_MEMORY.search(message) else ReasonKind.COMPILER
    return Reason(kind, f"{tools.name}: {words[:400]}")
