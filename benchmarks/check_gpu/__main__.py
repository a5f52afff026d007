"""What one NVIDIA GPU says of stripectl in eight minutes: run it with `make check-gpu`.

    python -m benchmarks.check_gpu [PART ...] [--output FOLDER] [--wheels FOLDER] [--any-device]

It uses the Python and JAX that run it, and no network. Packages that they lack can be carried as wheels: `pip download`
on another machine, then --wheels with the folder. Parts run one after another, the most useful first, each in a process
of its own with a limit of time. Each writes its file as it finds something, so a run that is killed keeps what it has
found. A part that fails leaves its reason, and a part for which no time is left is skipped. `--any-device` runs small
sizes on a device that is no GPU, to try the parts themselves. Exit code: 0 every part ran, 1 a part failed or was
skipped, 3 there is no GPU or no JAX.
"""

import argparse
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
LIMIT_S = 480.0  # of all parts
RESERVE_S = 5.0  # of it, to end a part that takes too long


class Part(NamedTuple):
    """A part: its module here, the seconds that it is given at least, or it does not begin, and at most of LIMIT_S."""

    name: str
    needs_s: float
    limit_s: float


# In the order of their worth.
PARTS = (
    Part("step_profile", 45, 150),
    Part("exactness", 25, 70),
    Part("verified", 30, 80),
    Part("recurrences", 20, 60),
    Part("block_pairs", 30, 110),
    Part("matrices", 20, 70),
    Part("tile_costs", 15, 40),
    Part("memory", 25, 60),
    Part("ring_of_8", 40, 120),
)


class PartFile:
    """The file of a part: its status, and the rows that it has found so far. It is replaced whole, so that it can be
    read at any time."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> dict[str, Any]:
        return json.loads(self.path.read_text()) if self.path.exists() else {"found": []}

    def write(self, status: str, reason: str | None, found: Sequence[Any], took_s: float) -> dict[str, Any]:
        content = {"status": status, "reason": reason, "took_s": round(took_s, 1), "found": found}
        beside = self.path.with_suffix(".new")
        with beside.open("w") as file:
            json.dump(content, file, indent=1)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        beside.replace(self.path)
        return content


def run_here(name: str, path: Path) -> None:
    """Run a part in this process; what it finds is written as it comes, and its table printed."""
    from benchmarks.check_gpu.sizes import sizes_here

    module, file, start = importlib.import_module(f"benchmarks.check_gpu.{name}"), PartFile(path), time.monotonic()
    rows: list[dict[str, Any]] = []
    file.write("unfinished", None, rows, 0.0)
    for row in module.found(sizes_here(), path.with_suffix("")):
        rows.append(row)
        file.write("unfinished", None, rows, time.monotonic() - start)
    wrong = sum(row.get("ok") is False for row in rows)
    status = ("failed", f"{wrong} of {len(rows)} are not exact") if wrong else ("ok", None)
    file.write(*status, rows, time.monotonic() - start)
    if table := getattr(module, "table", None):
        print(*table(rows), sep="\n")


def run_part(part: Part, file: PartFile, environment: Mapping[str, str], limit_s: float) -> dict[str, Any]:
    """The result of a part in a process of its own, which ends with all that it started where it takes too long."""
    start, reason = time.monotonic(), None
    file.path.unlink(missing_ok=True)
    command = [sys.executable, "-m", "benchmarks.check_gpu", part.name, "--file", str(file.path)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment, cwd=ROOT, process_group=0, **pipes) as process:
        try:
            said, errors = process.communicate(timeout=limit_s)
            if process.returncode:
                reason = (errors.strip().splitlines() or [f"it ended with {process.returncode}"])[-1]
            print(said, end="", flush=True)
        except subprocess.TimeoutExpired:
            reason = f"it took longer than {round(limit_s, 1):g} s"
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    done = file.read()
    if reason:
        return file.write("failed", reason, done["found"], time.monotonic() - start)
    return done


def device(environment: Mapping[str, str]) -> dict[str, Any] | str:
    """What JAX finds here, in a process of its own, or why it finds nothing."""
    code = "import json, jax; d = jax.devices()[0]; print(json.dumps([d.platform, d.device_kind, jax.__version__]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    if done.returncode:
        return (done.stderr.strip().splitlines() or ["Python ended without a word"])[-1]
    platform, kind, version = json.loads(done.stdout.splitlines()[-1])
    return {"platform": platform, "kind": kind, "jax": version, "python": sys.version.split()[0]}


def installed(wheels: Path, folder: str) -> str | None:
    """Put wheels into a folder, without a network; why that failed, or None."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target", folder]
    done = subprocess.run([*command, *map(str, sorted(wheels.glob("*.whl")))], capture_output=True, text=True)
    return (done.stderr.strip().splitlines() or ["pip said nothing"])[-1] if done.returncode else None


def main() -> int:
    names = [part.name for part in PARTS]
    given = argparse.ArgumentParser(prog="python -m benchmarks.check_gpu", description=(__doc__ or "").splitlines()[0])
    given.add_argument("parts", nargs="*", metavar="PART", help=f"default: {' '.join(names)}")
    given.add_argument("--output", type=Path, help="the folder of results; default: benchmarks/gpu/DEVICE-jaxVERSION")
    given.add_argument("--wheels", type=Path, help="a folder of wheels that this Python lacks")
    given.add_argument("--any-device", action="store_true", help="small sizes where the device is no GPU")
    given.add_argument("--limit", type=float, default=LIMIT_S, help="seconds of all parts; default: %(default).0f")
    given.add_argument("--file", type=Path, help=argparse.SUPPRESS)  # of one part, which runs in this process
    asked = given.parse_args()
    if asked.file:
        run_here(asked.parts[0], asked.file)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        if asked.wheels and (failure := installed(asked.wheels, folder)):
            print(f"error: cannot install the wheels of {asked.wheels}: {failure}", file=sys.stderr)
            return 3
        return check(asked, {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), folder])})


def check(asked: argparse.Namespace, environment: dict[str, str]) -> int:
    """Run the parts, and print a table of them; the exit code."""
    start = time.monotonic()
    environment.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # so that what a device holds can be read
    environment.setdefault("JAX_TRACEBACK_FILTERING", "off")  # whose note would be the last line of an error
    here = device(environment)
    if isinstance(here, str) or (here["platform"] != "gpu" and not asked.any_device):
        found = here if isinstance(here, str) else f"JAX {here['jax']} finds only {here['kind']} ({here['platform']})"
        remedy = "Try nvidia-smi, then pip install 'jax[cuda13]'."
        print(f"error: cannot check a GPU because none is usable here: {found}. {remedy}", file=sys.stderr)
        return 3
    name = "-".join([*here["kind"].lower().replace("nvidia", "").split(), f"jax{here['jax']}"])
    out = (asked.output or ROOT / "benchmarks" / "gpu" / name).absolute()
    out.mkdir(parents=True, exist_ok=True)
    (out / "device.json").write_text(json.dumps(here, indent=1) + "\n")
    rows = []
    for part in PARTS:
        if asked.parts and part.name not in asked.parts:
            continue
        file, left_s = PartFile(out / f"{part.name}.json"), asked.limit - RESERVE_S - (time.monotonic() - start)
        if left_s < part.needs_s:
            reason = f"it needs about {part.needs_s:.0f} s, and {max(0.0, left_s):.0f} s are left"
            done = {"status": "skipped", "reason": reason, "took_s": 0.0, "found": []}
        else:
            print(f"{part.name} ...", flush=True)
            done = run_part(part, file, environment, min(part.limit_s * asked.limit / LIMIT_S, left_s))
        rows.append((part.name, done))
    print()
    for name, done in rows:
        print(
            f"{name:<14}{done['status']:<9}{len(done['found']):>5} rows{done['took_s']:>7.0f} s  {done['reason'] or ''}"
        )
    print(f"written: {out}, in {time.monotonic() - start:.0f} s")
    return int(any(done["status"] != "ok" for _, done in rows))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the part that runs ends too
    sys.exit(main())
