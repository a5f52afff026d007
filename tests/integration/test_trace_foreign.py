"""What others leave, through the real command: profiles of JAX as it writes them, and what is no profile at all."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stripectl.errors import BadInput
from stripectl.profiling.diagnosis import ProfiledPlan
from stripectl.profiling.profiler import Tracer
from stripectl.workers.worker_group import WorkerGroup
from tests.support.command import Ended, stripectl
from tests.support.golden import PROFILES, written

PROGRAM = """
import sys
from contextlib import nullcontext
from functools import partial
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, PartitionSpec as P

@jax.jit
@partial(jax.shard_map, mesh=Mesh(np.array(jax.devices()), "ring"), in_specs=P("ring"), out_specs=P("ring"))
def step(x):
    for _ in range(3):
        moved = jax.lax.ppermute(x, "ring", [(0, 1), (1, 0)])
        x = moved + x @ x.T @ x
    return x

x = jnp.ones((256, 128), jnp.float32)
step(x).block_until_ready()
with jax.profiler.trace(sys.argv[1]):
    for number in range(2):
        with jax.profiler.StepTraceAnnotation("train", step_num=number) if "marked" in sys.argv else nullcontext():
            step(x).block_until_ready()
"""


@pytest.fixture(scope="session")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as jax.profiler.trace leaves it: two steps without marks, on two virtual devices, of three rounds whose
    permutes wait for one another; 64 x 128 x 4 bytes each."""
    folder = tmp_path_factory.mktemp("real")
    run_program(folder)
    return folder


def run_program(*arguments: object) -> None:
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu"}
    flags["JAX_ENABLE_COMPILATION_CACHE"] = "false"  # a profile lacks the HLO of a program from the cache
    subprocess.run([sys.executable, "-c", PROGRAM, *map(str, arguments)], env={**os.environ, **flags}, check=True)


def trace(profile: Path, *arguments: str) -> Ended:
    return stripectl("trace", "--quiet", "--read", str(profile), *arguments)


def read(profile: Path, *arguments: str) -> dict[str, Any]:
    done = trace(profile, "--json", *arguments)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def one_file(folder: Path) -> Path:
    (found,) = folder.rglob("*.xplane.pb")
    return found


def check(found: dict[str, Any], marked: bool = False) -> None:
    """What is certain of the program, however long it took."""
    assert found["module"].startswith("jit_step(")
    extent = ("step", 2, None) if marked else ("call", 0, 2)
    assert (found["per"], found["steps"], found["calls"]) == extent
    assert [device["name"] for device in found["devices"]] == ["CPU 0", "CPU 1"]
    assert [hop["sent_bytes"] for hop in found["hops"]] == [128 * 128 * 4] * 3
    assert [hop["turn"] for hop in found["hops"]] == [0, 0, 0]
    for device in found["devices"]:
        assert 0 < device["compute_s"] < device["step_s"]
        assert device["hidden_s"] + device["exposed_s"] > 0
    assert 0 <= found["overlap"]["ratio"] <= 1
    assert "collective-permute" in {row["category"] for row in found["operations"]}


def test_a_profile_of_jax_holds_its_program(real: Path) -> None:
    """The folder given to jax.profiler.trace, with the mesh named."""
    found = read(real, "--mesh", "ring=2")
    check(found)
    assert [row["axis"] for row in found["axes"]] == ["ring"]


def test_marked_steps_of_jax_are_steps(tmp_path: Path) -> None:
    run_program(tmp_path, "marked")
    check(read(tmp_path), marked=True)


def test_its_file_by_itself_says_the_same(real: Path, tmp_path: Path) -> None:
    alone = Path(shutil.copy(one_file(real), tmp_path / "anything.pb"))
    assert read(alone) == read(real)


def test_its_tables_are_whole(real: Path) -> None:
    done = trace(real)
    assert done.returncode == 0 and not done.stderr
    for word in (
        "2 calls of jit_step; steps are not marked;",
        "StepTraceAnnotation",
        "CPU 0",
        "CPU 1",
        "64.0 KiB",
        "collective-permute",
        "Try: ",
    ):
        assert word in done.stdout


def test_a_program_of_another_name_beside_it_is_not_its_own(real: Path, tmp_path: Path) -> None:
    shutil.copy(one_file(real), tmp_path)
    (tmp_path / "program.hlo.txt").write_text(
        (PROFILES / "ring.hlo.txt").read_text().replace("jit_step,", "jit_other,")
    )
    check(read(tmp_path))


def test_the_newest_run_of_a_folder_is_taken(real: Path, tmp_path: Path) -> None:
    """Whatever its name: the older one would say that there is no device."""
    runs = tmp_path / "plugins" / "profile"
    written(runs / "2026_01_02", (PROFILES / "host.txtpb").read_text())
    newest = runs / "2026_01_01"
    newest.mkdir()
    os.utime(runs / "2026_01_02" / "process0.xplane.pb", (0, 0))
    shutil.copy(one_file(real), newest)
    check(read(tmp_path))


def test_every_host_of_a_run_is_read(tmp_path: Path) -> None:
    """Eleven, in the order of their numbers: the one that waits is process 10, not 2."""
    slow, fast = [
        text.replace("duration_ps: 6000000 stats", f"duration_ps: {length} stats")
        for text in [(PROFILES / "cpu.txtpb").read_text()]
        for length in (6000000, 1000000)
    ]
    written(tmp_path, *[slow] * 10, fast, program=(PROFILES / "cpu.hlo.txt").read_text())
    found = read(tmp_path)
    assert [device["name"] for device in found["devices"][-3:]] == [
        *("process 9, CPU 1", "process 10, CPU 0", "process 10, CPU 1")
    ]
    compute = [device["compute_s"] for device in found["devices"]]
    assert compute[:20:2] == [14e-6] * 10 and compute[20] == 9e-6


@pytest.mark.parametrize("name", ["host", "cpu"])
def test_without_a_device_or_a_program_it_says_so(tmp_path: Path, name: str) -> None:
    done = trace(written(tmp_path, (PROFILES / f"{name}.txtpb").read_text()))
    reason = {"host": "the profile holds no operation of any device", "cpu": "does not contain the program (HLO)"}[name]
    assert done.returncode == 0 and f"overlap n/a: {reason}" in done.stdout.replace("the profile does", "does")


BAD = {
    "cut short": "is not an XLA profile (xplane.pb), or is truncated",
    "random": "is not an XLA profile (xplane.pb), or is truncated",
    "text": "is not an XLA profile (xplane.pb), or is truncated",
    "empty": "is empty",
    "empty folder": "holds no profile (*.xplane.pb)",
    "folder of others": "holds no profile (*.xplane.pb)",
    "missing": "does not exist",
    "folder with one bad file": "is not an XLA profile",
}


def bad(kind: str, real: Path, folder: Path) -> Path:
    path = folder / "a profile.xplane.pb"
    if kind == "cut short":
        whole = one_file(real).read_bytes()
        path.write_bytes(whole[: len(whole) * 2 // 3])
    elif kind == "random":
        path.write_bytes(b"\x07\xff" + bytes(range(256)) * 40)
    elif kind == "text":
        path.write_text("Not a profile, but the reader's notes about one.\n")
    elif kind == "empty":
        path.touch()
    elif kind == "folder with one bad file":
        shutil.copy(one_file(real), folder)
        path.write_text("no profile\n")
        return folder
    elif kind != "missing":
        if kind == "folder of others":
            (folder / "trace.json.gz").write_bytes(b"{}")
        return folder
    return path


@pytest.mark.parametrize("kind", BAD)
def test_what_is_no_profile_is_one_line(real: Path, tmp_path: Path, kind: str) -> None:
    done = trace(bad(kind, real, tmp_path))
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ") and BAD[kind] in line and str(tmp_path) in line


def test_a_program_beside_a_profile_that_is_none_is_one_line(tmp_path: Path) -> None:
    done = trace(written(tmp_path, (PROFILES / "cpu.txtpb").read_text(), program="no program\n"))
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ") and "program.hlo.txt is not a program (HLO text): it has no ENTRY" in line


def of_events(count: int) -> bytes:
    """A profile of a TPU with so many events, two bytes each: in memory a hundred."""

    def message(number: int, content: bytes) -> bytes:
        size, left = b"", len(content)
        while left > 127:
            size, left = size + bytes([left & 127 | 128]), left >> 7
        return bytes([number << 3 | 2]) + size + bytes([left]) + content

    line = message(2, b"XLA Ops") + message(4, b"") * count
    return message(1, message(2, b"/device:TPU:0") + message(3, line))


def refused(tracer: Tracer, profile: Path) -> str:
    with tracer, pytest.raises(BadInput) as error:
        tracer.read([profile], {}, ProfiledPlan())
    return str(error.value)


def test_a_profile_that_takes_all_memory_is_refused_at_a_limit(tmp_path: Path) -> None:
    profile = tmp_path / "large.xplane.pb"
    profile.write_bytes(of_events(10**7))
    reader = WorkerGroup(session="profile", variables={"JAX_PLATFORMS": "cpu"}, memory_bytes=2**29)
    said = refused(Tracer(tmp_path, reader=reader), profile)
    assert (
        said == f"cannot read {profile}: its reader needs more memory than its limit of 512 MiB. Capture fewer steps."
    )


def test_a_profile_larger_than_memory_is_one_line(tmp_path: Path) -> None:
    profile = tmp_path / "huge.xplane.pb"
    with profile.open("wb") as file:
        file.truncate(2**40)  # of nothing, which takes no place on a disk
    done = trace(profile)
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(
        rf"error: cannot read {profile}: its reader needs more memory than its limit of .*.*\n", done.stderr
    )


def test_a_profile_that_is_never_read_to_its_end_is_refused_at_a_limit(tmp_path: Path, monkeypatch) -> None:
    profile = tmp_path / "endless.xplane.pb"
    os.mkfifo(profile)
    # Its reader's start may take 120 s besides.
    monkeypatch.setattr("stripectl.profiling.profiler.READ_TIMEOUT_S", -116.0)
    assert refused(Tracer(tmp_path), profile) == f"cannot read {profile}: took longer than its limit of 4 s"


ABORTING = """
import os, sys
if any('"session": "profile"' in each for each in sys.orig_argv):
    from stripectl.profiling import session
    session.read_profile = lambda path: os.abort()
"""


def test_a_profile_that_aborts_its_reader_is_one_line(real: Path, tmp_path: Path, monkeypatch) -> None:
    """As a failed check in C++ does. No file is known that makes this version abort, so the reader is made to."""
    (tmp_path / "sitecustomize.py").write_text(ABORTING)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    done = trace(real)
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(r"error: cannot read .*xplane\.pb: process 0 was killed by SIGABRT.*\n", done.stderr)
