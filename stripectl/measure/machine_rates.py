"""Rates of a machine, measured on its devices and saved as a hardware profile.

They are figures of the machine and not of a plan, so they come from its devices, as the costs of simulated tiles do,
and not from a `Backend`.
"""

import platform
from datetime import UTC, datetime
from pathlib import Path

import yaml

from stripectl.core.workload import DTYPES
from stripectl.errors import Missing
from stripectl.hardware.profile import MEASURED_ON, Hardware, hardware_names
from stripectl.measure.local_target import LocalTarget
from stripectl.measure.machine_timings import MachineTimings
from stripectl.util.output import write_output


def measured_profile(place: LocalTarget, timings: MachineTimings, path: Path) -> Hardware:
    """The machine with its measured rates, saved as a profile for `--hardware`.

    Raises:
        Missing: the devices are not available here.
    """
    return save_profile(place.target.hardware, measure_rates(place, timings), path)


def measure_rates(place: LocalTarget, timings: MachineTimings) -> dict[str, float]:
    """The rate of a large matmul in each dtype, and the rate and latency of a hop, by the names of their figures.

    Raises:
        Missing: the devices are not available here.
    """
    if not place.here:
        raise Missing(f"cannot measure {place.target} because it is not available here. Try --target local.")
    workers, found = timings.workers, dict[str, float]()
    for dtype in DTYPES:
        workers.say(f"time a {dtype} matmul", 0, 1)
        rates = workers.group(place.processes).ask("time_matmul", dtype=dtype)
        found[f"matmul_flops_per_s_{dtype}"] = float(min(rates))
    if hop := timings.hop(place.processes, place.here):
        latency, found["link_bytes_per_s_one_way"] = hop
        found |= {"hop_latency_s": latency} if latency > 0 else {}
    return found


def save_profile(base: Hardware, measured: dict[str, float], path: Path) -> Hardware:
    """The machine with its measured figures in place of the published figures, based on the machine whose tables it
    takes."""
    source = f"{MEASURED_ON}{platform.node()} by stripectl topology --measure, {datetime.now(UTC):%Y-%m-%d}"
    values, sources = {**base.figures, **measured}, {**base.sources, **dict.fromkeys(measured, source)}
    figures = {name: {"value": value, "source": sources[name]} for name, value in values.items()}
    based_on = base.tables_of if base.tables_of in hardware_names() else ""
    content = base.fields() | {"based_on": based_on, "figures": figures}
    write_output(path, yaml.safe_dump(content, sort_keys=False))
    return Hardware.load(str(path))
