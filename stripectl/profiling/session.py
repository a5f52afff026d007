"""The worker that reads profiles, so that a broken profile ends only the worker."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from stripectl.errors import BadInput
from stripectl.hlo.module import parse_module
from stripectl.profiling.calls import divided_by_calls, other_programs
from stripectl.profiling.device_steps import devices_that_ran, main_module
from stripectl.profiling.diagnosis import ProfiledPlan
from stripectl.profiling.events import Device
from stripectl.profiling.folder import named_module, operations, program_text
from stripectl.profiling.overlap import analyse, no_overlap, own_operations
from stripectl.profiling.program import ProfiledProgram, module_of
from stripectl.profiling.reader import read_profile
from stripectl.results.profile import Profile
from stripectl.results.records import read_record, record_json
from stripectl.util.files import printable
from stripectl.util.json import Json, JsonObject

DIGITS = 6


class Session:
    """The requests that it answers; arguments and results are JSON."""

    def analyse(self, files: list[str], axes: Mapping[str, int], told: JsonObject) -> Json:
        """The overlap in a profile (`results.profile.Profile`). `axes` is the mesh, the last axis varying fastest,
        where it is known; `told` is a `ProfiledPlan`.

        Raises:
            BadInput: it is not a profile.
        """
        paths = list(map(Path, files))
        processes = [[device for device in found if len(device.operations.which)] for found in map(read_profile, paths)]
        if not any(device.executions for device in devices_of(processes)):
            return record_json(Profile(steps=0, reason=no_overlap("the profile holds no operation of any device")))
        module = main_module(devices_of(processes), named_module(paths))
        pairs = zip(paths, processes, strict=True)
        source, ran = next(pair for pair in pairs if any(device.runs(module) for device in pair[1]))
        processes = devices_that_ran(processes, module)
        program = profiled_program(program_text(source, module), devices_of(processes), axes)
        kind, names = ran[0].kind, processes[0][0].operations.names
        if kind != "gpu" and not any(map(program.role, names)):
            fact = f"the profile does not contain the program (HLO) of {module}, and no file next to it does"
            return record_json(Profile(steps=0, reason=no_overlap(fact)))
        processes = divided_by_calls(processes, module, program.module)
        table = operations(paths) if kind != "cpu" else None
        found = replace(
            analyse(processes, module, program, replace(read_record(ProfiledPlan, told), platform=kind)),
            other_programs=other_programs(ran, module),
            operations=table or own_operations(devices_of(processes), module, program),
            operations_by="xprof" if table else "events of the profile",
        )
        return printable(rounded(record_json(found)))


def devices_of(processes: Sequence[Sequence[Device]]) -> list[Device]:
    """The devices of all processes."""
    return [device for devices in processes for device in devices]


def profiled_program(text: str | None, devices: Sequence[Device], axes: Mapping[str, int]) -> ProfiledProgram:
    """The program on a mesh, from its HLO, or else from the names of its operations.

    Raises:
        BadInput: the mesh and the program have different numbers of devices.
    """
    program = ProfiledProgram(parse_module(text) if text else module_of(device.texts for device in devices), axes)
    given = math.prod(axes.values())
    if axes and program.devices not in (0, given):
        raise BadInput(f"the mesh has {given} devices, but the program runs on {program.devices}. Try another --mesh.")
    return program


def rounded(value: Any) -> Any:
    """Nested data with numbers rounded to significant digits."""
    if isinstance(value, dict):
        return {name: rounded(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(each) for each in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value
