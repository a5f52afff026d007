"""The compiling worker: compiles a plan's program for devices that are only described."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
from jax.experimental import topologies
from jax.sharding import SingleDeviceSharding

from stripectl.compile.report import CompilerReport
from stripectl.core.plan import Plan, parse_plan
from stripectl.core.workload import STEP, Workload
from stripectl.costs.cost_model import COUNTING
from stripectl.errors import StripectlError
from stripectl.execute.program import compiled_host_bytes, compiled_peak_bytes
from stripectl.hlo.llo_bundles import kernels
from stripectl.hlo.module import parse_module, sent_bytes_by_opcode
from stripectl.hlo.rewrites import rewrites
from stripectl.hlo.schedule import copies, cycles, scheduled_collectives
from stripectl.results.compiled_program import CompiledProgram, KernelBundles
from stripectl.results.records import record_json
from stripectl.simulate.layer_attention import recomputes_attention
from stripectl.simulate.simulation import simulate
from stripectl.training.program import program_of
from stripectl.util.json import JsonObject
from stripectl.util.plug_in_errors import place_in_plug_in, show_traceback


def clear(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()


def compiler_message(error: Exception) -> str:
    """The compiler's message in one line, with the name of Mosaic's errors; an error of another source is raised."""
    kind, said = type(error).__name__, " ".join(str(error).split())
    if "Mosaic" in kind:
        return f"{kind}: {said}"
    if isinstance(error, jax.errors.JaxRuntimeError | ValueError | NotImplementedError):
        return said
    raise error


def bundles_of(dump: Path) -> tuple[KernelBundles, ...] | None:
    """The Pallas kernels in a dump; None where the dump's format, which nobody guarantees, is unknown."""
    try:
        return tuple(kernels(dump))
    except StripectlError:
        return None


def program_report(
    workload: Workload, plan: Plan, compiled: Any, compile_s: float, bundles: tuple[KernelBundles, ...] | None
) -> CompilerReport:
    """Memory, collectives and their schedule, rewrites, copies, and cycles where a compiler estimates them: for one
    layer's attention by pass, and for all other parts of a training step together."""
    module, step = parse_module(compiled.as_text()), workload.passes == STEP
    every, alike = scheduled_collectives(module, plan.axes)
    estimated, beside = cycles(module, step)
    layers = workload.layers or 1
    runs = {"forward": layers * (1 + (step and recomputes_attention(plan))), "backward": layers}
    changed = [] if step else rewrites(workload, simulate(workload, plan, COUNTING).transfers, every)
    return CompilerReport(
        compile_s=compile_s,
        peak_bytes=compiled_peak_bytes(compiled),
        host_bytes=compiled_host_bytes(compiled),
        bytes=sent_bytes_by_opcode(every),
        program=CompiledProgram(
            collectives=tuple(alike),
            rewrites=tuple(changed),
            copies=copies(module, step),
            cycles=None
            if estimated is None
            else {passes: each.shared(runs[passes]) for passes, each in estimated.items()},
            beside=beside,
            bundles=bundles,
        ),
    )


@dataclass
class Session:
    """The requests that a compiling worker answers; arguments and results are JSON."""

    machines: dict[str, list[Any]] = field(default_factory=dict)

    def compile(
        self,
        workload: JsonObject,
        plan: str,
        topology: Mapping[str, Any],
        flags: Mapping[str, str],
        dump: str | None,
    ) -> JsonObject:
        """The compiler's report on a plan's program, with the bundles of its kernels (`CompilerReport`).

        `topology` holds the arguments of `get_topology_desc`, and `order`: the devices in the order of the plan's mesh;
        `dump` is the folder where this process's compiler leaves its bundles, if it is asked for them.

        Raises:
            BadInput: the compiler does not know a flag, or the kernel cannot compute this plan, so it was not asked.
        """
        if dump:
            clear(Path(dump))
        work, parsed = Workload.from_json(workload), parse_plan(plan)
        program = program_of(work, parsed, self.devices(topology))
        start = time.perf_counter()
        try:
            compiled = program.compile(flags)
        except Exception as error:
            show_traceback(error)
            reason, compile_s = compiler_message(error) + place_in_plug_in(error), time.perf_counter() - start
            return record_json(CompilerReport(refused=reason, compile_s=compile_s))
        compile_s, bundles = time.perf_counter() - start, bundles_of(Path(dump)) if dump else None
        return record_json(program_report(work, parsed, compiled, compile_s, bundles))

    def probe(self, topology: Mapping[str, Any]) -> bool:
        """Whether the compiler compiles one line for one of the described devices; raises the compiler's error."""
        sharding = SingleDeviceSharding(self.devices(topology)[0])
        square = jax.ShapeDtypeStruct((256, 256), "float32", sharding=sharding)
        jax.jit(lambda x: jax.numpy.exp(x @ x)).lower(square).compile()
        return True

    def ready(self) -> bool:
        """Whether the worker has started."""
        return True

    def devices(self, topology: Mapping[str, Any]) -> Sequence[Any]:
        """The described devices, in the order of the mesh."""
        arguments = {name: value for name, value in topology.items() if name != "order"}
        which = str(arguments)
        if which not in self.machines:
            self.machines[which] = topologies.get_topology_desc(**arguments).devices
        return [self.machines[which][at] for at in topology["order"]]
