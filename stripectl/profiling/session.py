"""The worker that reads profiles, so that a broken profile ends only the worker."""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from stripectl.errors import BadInput
from stripectl.hlo.module import parse_module
from stripectl.profiling.calls import divided_by_calls, other_programs
from stripectl.profiling.device_steps import devices_that_ran, main_module
from stripectl.profiling.diagnosis import ProfiledPlan
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
        devices = [device for found in processes for device in found]
        if not any(device.executions for device in devices):
            return record_json(Profile(steps=0, reason=no_overlap("the profile holds no operation of any device")))
        module = main_module(devices, named_module(paths))
        source, ran = next(
            (path, found)
            for path, found in zip(paths, processes, strict=True)
            if any(device.runs(module) for device in found)
        )
        text = program_text(source, module)
        processes = devices_that_ran(processes, module)
        texts = (device.texts for found in processes for device in found)
        program = ProfiledProgram(parse_module(text) if text else module_of(texts), axes)
        check_mesh(program)
        kind, names = ran[0].kind, processes[0][0].operations.names
        if kind != "gpu" and not any(map(program.role, names)):
            fact = f"the profile does not contain the program (HLO) of {module}, and no file next to it does"
            return record_json(Profile(steps=0, reason=no_overlap(fact)))
        processes = divided_by_calls(processes, module, program.module)
        devices = [device for found in processes for device in found]
        table = operations(paths) if kind != "cpu" else None
        found = replace(
            analyse(processes, module, program, replace(read_record(ProfiledPlan, told), platform=kind)),
            other_programs=other_programs(ran, module),
            operations=table or own_operations(devices, module, program),
            operations_by="xprof" if table else "events of the profile",
        )
        return printable(rounded(record_json(found)))


def check_mesh(program: ProfiledProgram) -> None:
    """Check that a mesh has as many devices as the program.

    Raises:
        BadInput: it has not.
    """
    given = math.prod(program.axes.values())
    if program.axes and program.devices not in (0, given):
        raise BadInput(f"the mesh has {given} devices, but the program runs on {program.devices}. Try another --mesh.")


def rounded(value: Any) -> Any:
    """Nested data with numbers rounded to significant digits."""
    if isinstance(value, dict):
        return {name: rounded(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(each) for each in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value
