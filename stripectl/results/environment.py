"""The environment of a run: versions, processor, load, flags, git. Without importing JAX."""

import os
import platform
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from stripectl.results.git import git_commit
from stripectl.util.json import is_list, is_mapping

PACKAGES = (
    "jax",
    "jaxlib",
    "libtpu",
    "jax-cuda13-plugin",
    "jax-cuda12-plugin",
    "flax",
    "numpy",
    "scipy",
    "xprof",
    "tokamax",
)
FLAGS = ("XLA_FLAGS", "LIBTPU_INIT_ARGS", "JAX_PLATFORMS")
BUSY_SHARE = 0.5  # of the cores, from which on times are noisy
SAMPLE_S = 0.25
VERSION = metadata.version("stripectl")


def version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def cores() -> list[int]:
    """The processor cores that this process may use."""
    return sorted(os.sched_getaffinity(0))


def memory_bytes() -> int:
    """The memory of this machine."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def processor() -> str:
    """The processor's name as it reports it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
        return next(names, platform.processor())
    except OSError:
        return platform.processor()


def warnings() -> list[str]:
    """Warnings about programs that would disturb measurements on this machine now. A run does not need them, because
    each measurement has the disturbances of its own samples (`noise`)."""
    found = list[str]()
    available = len(cores())
    if os.getloadavg()[0] > BUSY_SHARE * available and (busy := busy_cores()) > BUSY_SHARE * available:
        found.append(f"other programs keep {busy:.1f} of {available} cores busy; times will be noisy")
    return found


def busy_cores() -> float:
    """Cores of the whole machine that are busy now. The load average covers the last minute, and so a bench that has
    just ended; it is the answer where the system keeps no times."""
    try:
        before, since = _busy_seconds(), time.monotonic()
        time.sleep(SAMPLE_S)
        return (_busy_seconds() - before) / (time.monotonic() - since)
    except (OSError, ValueError, IndexError):
        return os.getloadavg()[0]


def _busy_seconds() -> float:
    """Since the machine started, over all its cores; without idle time and waits for disks."""
    first = Path("/proc/stat").read_text().splitlines()[0]
    user, nice, system, _, _, irq, softirq, steal, *_ = map(int, first.split()[1:])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def conditions() -> dict[str, Mapping[str, str | int]]:
    """The versions of packages, the flags and the host: each time depends on them."""
    versions = {"stripectl": VERSION, "python": platform.python_version()}
    return {
        "versions": versions | {name: known for name in PACKAGES if (known := version(name))},
        "flags": {name: value for name in FLAGS if (value := os.environ.get(name))},
        "host": {"system": platform.platform(), "processor": processor(), "cores": len(cores())},
    }


def environment() -> dict[str, Any]:
    """The `environment` of a run, before its devices and differences of its hosts are known."""
    return {**conditions(), "devices": list[Any](), "git": git_commit(), "warnings": list[str]()}


def differing_parts(
    ours: Mapping[str, object], theirs: Mapping[str, object], parts: Sequence[str]
) -> Iterator[tuple[str, str, str]]:
    """(name, ours, theirs) of each difference in these parts of two environments."""
    for part in parts:
        mine, other = part_label(ours.get(part)), part_label(theirs.get(part))
        for name in sorted({*mine, *other}):
            if mine.get(name) != other.get(name):
                yield name, str(mine.get(name) or "none"), str(other.get(name) or "none")


def part_label(part: object) -> dict[str, object]:
    """A part of an environment by name; devices are named by the number of processes that drive them."""
    if is_list(part):
        devices = (each for each in part if is_mapping(each))
        return {f"devices of {each.get('processes')}": f"{each.get('count')} x {each.get('kind')}" for each in devices}
    return dict(part) if is_mapping(part) else {}
