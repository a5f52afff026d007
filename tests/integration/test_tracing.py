"""`stripectl trace` through real processes: captures that open as they are, and where the imbalance of a ring shows."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stripectl.cli import main
from stripectl.results.environment import cores

RING = "ring/{}/xla@ring=2,tile=512"
SMALL = ["--heads", "1", "--head-dim", "64"]


def stripectl(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "stripectl", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def trace(out: Path, layout: str, *arguments: str) -> list[dict[str, Any]]:
    done = stripectl("trace", RING.format(layout), *SMALL, "--output", str(out), "--json", *arguments)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["measurements"]


@pytest.mark.hosts
@pytest.mark.skipif(len(cores()) < 2, reason="needs two cores")
@pytest.mark.usefixtures("users_compiler")
def test_a_contiguous_ring_waits_more_than_twice_as_long_as_a_striped_one(tmp_path: Path) -> None:
    """Queries of the first half have half as many keys to meet: at 16k tokens in tiles of 512 a contiguous ring of two
    computes 136 + 0 tiles on one device and 136 + 256 on the other, a striped one 136 + 136 or 120. The only hop comes
    before the uneven round, so the wait lies at the end of the step."""
    found = dict[str, float]()
    for attempt in range(3):  # the machine may be busy with something else
        for layout in ("contiguous", "striped"):
            [m] = trace(tmp_path / f"{layout}{attempt}", layout, "--seqlen", "16k", "--pass", "forward")
            assert m["target"] == "cpu:2"
            assert [device["name"] for device in m["profile"]["devices"]] == ["process 0", "process 1"]
            [hop] = m["profile"]["hops"]
            assert (hop["axis"], hop["opcode"], hop["sent_bytes"]) == ("ring", "collective-permute", 2 * 8192 * 64 * 4)
            assert len(hop["window_s"]) == len(hop["skew_s"]) == 2 and min(hop["window_s"]) > 0
            assert m["overlap"]["hidden_s"] + m["overlap"]["exposed_s"] > 0
            found[layout] = m["overlap"]["skew_s"]
        if found["contiguous"] > 2 * found["striped"]:
            return
    pytest.fail(f"skew: {found}")


@pytest.mark.hosts
@pytest.mark.skipif(len(cores()) < 2, reason="needs two cores")
def test_a_bench_with_profiles_keeps_them_whole(tmp_path: Path) -> None:
    """Both passes and layouts: a folder for each, as xprof wants it and nothing else in it, the program beside it."""
    out = tmp_path / "run"
    done = stripectl(
        *("bench", "--target", "cpu:2", "--seqlen", "2k", *SMALL, "--layout", "contiguous,striped", "--profile"),
        *("--method", "measured"),
        *("--time-budget", "3s", "--min-samples", "1", "--output", str(out)),
    )
    assert done.returncode == 0, done.stderr
    assert f"xprof --logdir {out / 'profiles'}" in done.stdout
    measurements = json.loads((out / "run.json").read_text())["measurements"]
    traced = [m for m in measurements if m["profile"]]
    assert len(traced) == len({m["profile"]["profile"] for m in traced}) == len(measurements) == 6
    for m in traced:
        folder = out / m["profile"]["profile"]
        kept = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
        devices = 2 if "ring=2" in m["plan"] else 1
        profiles = [f"plugins/profile/steps/process{at}.xplane.pb" for at in range(devices)]
        assert kept == [*profiles, "program.hlo.txt"]
        assert m["profile"]["steps"] == 3
        assert bool(m["overlap"]) == (devices == 2)  # one device has nothing to hide
        assert devices == 2 or m["profile"]["reason"] == "the profile holds no collective of the program"
    back = next(m for m in traced if m["pass"] == "forward-backward" and "striped" in m["plan"])
    sent = sum(hop["sent_bytes"] for hop in back["profile"]["hops"])
    assert sent == sum(back["bytes"].values())

    alone = tmp_path / "alone"
    alone.mkdir()
    for file in (out / back["profile"]["profile"]).rglob("*.pb"):
        (alone / file.name).write_bytes(file.read_bytes())
    foreign = json.loads(stripectl("trace", "--read", str(alone), "--mesh", "ring=2", "--json").stdout)
    told = (
        "pass",
        "what",
        "axis",
        "sent_bytes",
    )  # by the program inside the profile, as by the one that was kept beside it
    expected = [[hop[name] for name in told] for hop in back["profile"]["hops"]]
    assert [[hop[name] for name in told] for hop in foreign["hops"]] == expected
    assert [hop[:2] for hop in expected] == [["forward", "kv"], ["backward", "dkv"], ["backward", "dkv"]]
    wrong = stripectl("trace", "--read", str(alone), "--mesh", "ring=3")
    assert wrong.returncode == 2 and "the mesh has 3 devices, but the program runs on 2" in wrong.stderr


@pytest.mark.hosts
@pytest.mark.skipif(len(cores()) < 2, reason="needs two cores")
def test_a_trace_adds_a_profile_to_what_was_measured_before(tmp_path: Path) -> None:
    """With --resume, what is there without a profile is measured again and takes its place."""
    out, plan = tmp_path / "run", "ring/striped/xla@ring=2,tile=256"
    common = ["--seqlen", "2k", *SMALL, "--pass", "forward", "--output", str(out)]
    bench = ["--target", "cpu:2", "--plan", plan, "--method", "measured", "--time-budget", "2s", "--min-samples", "1"]
    assert stripectl("bench", *bench, *common).returncode == 0
    before = json.loads((out / "run.json").read_text())["measurements"]
    assert [m["profile"] for m in before] == [None, None]
    assert stripectl("trace", plan, *common, "--resume", "--steps", "1").returncode == 0
    after = json.loads((out / "run.json").read_text())["measurements"]
    assert [m["plan"] for m in after] == [m["plan"] for m in before]
    assert [bool(m["profile"]) for m in after] == [True, False]
    assert after[0]["profile"]["module"].startswith(
        "jit_body"
    )  # not the barrier, which may take longer than so short a step


BAD = {
    "neither a plan nor a profile": ([], "name a plan to run"),
    "both": (["ring/striped/xla@ring=2", "--read", "x"], "name a plan to run"),
    "no plan": (["ring/stripes/xla@ring=2"], "unknown layout or kernel 'stripes'"),
    "a mesh beside a plan": (["ring/striped/xla@ring=2", "--mesh", "ring=2"], "--mesh names the axes"),
    "an option that reading does not heed": (["--read", "x", "--steps", "2"], "--steps is for running a plan"),
    "no such profile": (["--read", "nowhere"], "nowhere does not exist"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments, message = BAD[case]
    with pytest.raises(SystemExit) as ended:
        main(["trace", *arguments])
    printed = capsys.readouterr()
    assert ended.value.code == 2 and message in printed.err
    assert len(printed.err.strip().splitlines()) == 1 and printed.out == ""
