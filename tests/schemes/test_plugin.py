"""A scheme in one new file, and nothing else changed: listed, simulated, exact, benched and reported."""

import sys
from pathlib import Path

import pytest

import stripectl.schemes
from stripectl.core.scheme import schemes
from stripectl.core.workload import Workload
from stripectl.costs.cost_model import COUNTING
from stripectl.results.run import Run
from stripectl.simulate.simulation import simulate
from tests.support.command import run
from tests.support.exact import catalogue, check, on_devices
from tests.support.plans import with_tile

TOY = '''"""Toy: keys and values go round one place back (Nobody 2024)."""

from stripectl.core.scheme import Scheme


def forward(q, kv, attend, comm):
    shards, me, state = comm.size("ring"), comm.index("ring"), attend.empty(q)
    for hop in range(shards):
        following = comm.shift(kv, "ring", "kv", by=-1) if hop < shards - 1 else kv
        state = attend(q, kv, me, (me + hop) % shards, into=state)
        kv = following
    return state


scheme = Scheme("toy", paper="https://nowhere.example/toy", axes=("ring",), forward=forward)
'''


@pytest.fixture(autouse=True)
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "schemes").mkdir()
    (tmp_path / "schemes" / "toy.py").write_text(TOY)
    monkeypatch.setattr(stripectl.schemes, "__path__", [*stripectl.schemes.__path__, str(tmp_path / "schemes")])
    monkeypatch.chdir(tmp_path)
    yield
    schemes._cache.pop("toy", None)
    sys.modules.pop("stripectl.schemes.toy", None)
    if hasattr(stripectl.schemes, "toy"):
        delattr(stripectl.schemes, "toy")


def test_it_is_listed(capsys: pytest.CaptureFixture) -> None:
    assert run("list", "schemes") == 0
    lines = capsys.readouterr().out.splitlines()
    at = next(i for i, line in enumerate(lines) if line.split()[:1] == ["toy"])
    assert "keys and values go round one place back" in lines[at] and "https://nowhere.example/toy" in lines[at]
    assert "zigzag" in lines[at + 1] and "sliding" in lines[at + 2]


def test_it_is_simulated_and_sends_what_a_ring_does() -> None:
    work = Workload(seq_len=2**14, heads=8, kv_heads=2, head_dim=64)
    toy, ring = (simulate(work, with_tile(on_devices(name, 8), work, "tpu"), COUNTING) for name in ("toy", "ring"))
    assert toy.sent == ring.sent == {"collective-permute": 7 * 2 * 2**11 * 2 * 64 * 2}
    assert toy.seconds == ring.seconds


def test_the_exactness_tests_have_its_cases() -> None:
    quick, cover, product = catalogue(["toy"])
    assert {case.layout for case in quick} == {"contiguous", "striped", "zigzag"}
    assert {case.mesh for case in product} == {f"ring={size}" for size in (1, 2, 3, 4, 8)}
    case = next(case for case in [*quick, *cover] if case.passes == "forward-backward" and case.plan.devices == 3)
    check(case.workload, case.plan)


def test_one_that_raises_on_clocks_costs_only_itself(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    broken = TOY.replace("    shards, me", "    raise ZeroDivisionError('by nothing')\n    shards, me")
    (tmp_path / "schemes" / "toy.py").write_text(broken)
    bench = ["--target", "v5p:4", "--method", "simulated", "--seqlen", "64k", "--scheme", "toy,ring", "--quiet"]
    assert run("bench", *bench, "--pass", "forward", "--output", "run") == 1
    found = Run.load(Path("run")).measurements
    assert {str(m.plan).split("/")[0]: m.status for m in found} == {"toy": "failed", "ring": "ok"}
    said = "counting the tiles of this scheme failed: ZeroDivisionError: by nothing, at schemes/toy.py:7"
    assert said in capsys.readouterr().out
    assert run("tune-tiles", *bench, "--layout", "striped", "--output", "tuned", "--no-cache") == 1
    assert {m.status for m in Run.load(Path("tuned")).measurements if str(m.plan).startswith("ring")} >= {"ok"}


MISTAKES = {  # (a part of the file, in its place): the message
    ("kv, attend, comm)", "kv, comm)"): "forward must take (q, kv, attend, comm), but takes (q, kv, comm), at schemes/",
    ('("ring",)', '"ring"'): "axes must be a tuple of mesh axes, such as ('ring',), not 'ring', at schemes/toy.py:15",
    ('("ring",)', '("rnig",)'): "axes has 'rnig', but the axes of a mesh are data, fsdp, ",
    ('Scheme("toy"', 'Scheme("tyo"'): "the scheme has the name 'tyo', but must have 'toy'",
    ('"ring", "kv"', '"rnig", "kv"'): "the scheme has no axis 'rnig'; its axes are ring, at schemes/toy.py:9",
    ("return state", "return state,"): "forward at schemes/toy.py:6 must return the state of its queries, not tuple",
    ("forward)", "forward, backward=lambda saved, kv, attend, comm: saved[0])"): "backward at schemes/toy.py:15 must "
    "return (dq, dkv) with the structure of (q, kv), not TimedArray",
    ("forward)", "forward, why_unsupported=lambda workload, mesh: mesh['x'])"): "why_unsupported of toy failed: "
    "KeyError: 'x', at schemes/toy.py:15",
    ("forward)", "forward, why_unsupported=lambda workload, mesh: 'no')"): "why_unsupported at schemes/toy.py:15 must "
    "return a Reason or None, not str",
}


@pytest.mark.parametrize(("old", "new"), MISTAKES)
def test_a_mistake_is_named_with_its_place(old: str, new: str, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert old in TOY
    (tmp_path / "schemes" / "toy.py").write_text(TOY.replace(old, new))
    bench = "bench --scheme toy --layout striped --target v5p:4 --method simulated --seqlen 8k --quiet --output run"
    assert run(*bench.split(), "--pass", "forward-backward") != 0
    said = capsys.readouterr()
    assert MISTAKES[old, new] in " ".join((said.out + said.err).split()) and "Traceback" not in said.err


def test_it_is_benched_and_reported() -> None:
    bench = ["bench", "--target", "v5p:4", "--method", "simulated", "--seqlen", "64k", "--scheme", "toy,ring"]
    assert run(*bench, "--output", "run", "--quiet") == 0
    found = [m for m in Run.load(Path("run")).measurements if str(m.plan).startswith("toy/")]
    assert {m.workload.passes for m in found} == {"forward", "forward-backward"}
    assert all(m.status == "ok" and m.median_s and m.bytes for m in found)
    assert run("report", "run", "--no-open", "-o", "page.html") == 0
    assert "toy/striped" in Path("page.html").read_text()
