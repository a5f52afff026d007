"""Input that nobody means well, at random and as it once did harm: strings, YAML, runs, pages, profiles, options.

`hostile` makes it, `untrusted` says what must hold of it; `fuzz.py` looks for more, led by coverage.
"""

import base64
import gzip
import itertools
import json
import os
import pickle
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.support import hostile
from tests.support.golden import PROFILES, xspace
from tests.support.hostile import SHIPPED
from tests.support.untrusted import SMALL, asked, command_line, profile, run_file, strings, watched, yaml_file

BOUNDED = settings(
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[*HealthCheck],  # pyright: ignore[reportArgumentType]
    max_examples=60,
)
RANDOM = st.randoms(use_true_random=False)
MODEL = "{hidden: 64, feed_forward: 128, layers: 2, heads: 4, kv_heads: 4, head_dim: 16, vocabulary: 100}"
NINE = [(b, ",".join([f"*{a}"] * 9)) for a, b in itertools.pairwise("abcdefghi")]
BOMB = "x: &a [1]\n" + "".join(f"{name}: &{name} [{before}]\n" for name, before in NINE)
MERGES = "x: &a {k: 1}\n" + "".join(f"{name}: &{name} {{<<: [{before}]}}\n" for name, before in NINE)


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="fuzz-") as made:
        yield Path(made)


def fresh(check: Callable[..., None], *arguments: Any, **more: Any) -> None:
    """The property in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as made:
        check(*arguments, Path(made), **more)


def test_what_should_not_happen_is_seen(tmp_path: Path) -> None:
    """The watch itself: else nothing below could fail."""
    inside, outside = tmp_path / "inside", tmp_path / "outside.txt"
    inside.mkdir()
    (inside / "link").symlink_to(tmp_path)
    for harm in (
        lambda: outside.write_text(""),
        lambda: (inside / "link" / "outside.txt").write_text(""),
        lambda: (inside / ".." / "outside.txt").write_text(""),
        lambda: os.replace(inside / "fine.txt", outside),
        lambda: subprocess.run(["true"], check=True),
        lambda: os.system("true"),
        lambda: pickle.loads(pickle.dumps(Path)),
    ):
        with pytest.raises(AssertionError), watched(inside):
            (inside / "fine.txt").write_text("")
            harm()
    with watched(inside), pytest.raises(MemoryError):
        bytearray(2**31)


TEXTS = st.one_of(st.text(max_size=40), st.lists(st.sampled_from(hostile.PIECES), max_size=12).map("".join))


@settings(BOUNDED, max_examples=400)
@given(st.one_of(TEXTS, st.sampled_from(hostile.TEXTS), RANDOM.map(hostile.text)))
@example("1,2\x1d")
@example("ulysses@\n")
@example("ring@" + "9" * 5000)
@example(",".join(f"a{at}=999999" for at in range(3000)))
@example("v5e:" + "x".join(["9"] * 5000))
def test_strings(text: str) -> None:
    strings(text)


@settings(BOUNDED, max_examples=40)
@given(st.sampled_from(SHIPPED), RANDOM, st.booleans())
def test_yaml(path: Path, random: Random, by_bytes: bool) -> None:
    content = path.read_bytes()
    if by_bytes:
        content = hostile.cut(content, random)
    else:
        content = hostile.yaml_of(hostile.mutated(yaml.safe_load(content), random))
    fresh(yaml_file, content)


BAD_YAML = {
    "a number of 5000 digits": ("seqlen: " + "9" * 5000, "is not YAML"),
    "no such date": ("seqlen: 2001-99-99", "is not YAML"),
    "lists of lists by aliases": (f"{BOMB}seqlen: *i", "aliases (*) stand for more"),
    "merges of merges": (MERGES, "aliases (*) stand for more"),
    "a list in itself": ("seqlen: &a [*a]", "or for themselves"),
    "Python": ("seqlen: !!python/object/apply:os.system ['touch owned']", "is not YAML"),
    "a tag that lies": ("seqlen: !!int ''", "is not YAML"),
    "lists in lists": ("seqlen: " + "[" * 5000 + "]" * 5000, "is not YAML"),
    "a file that no system has": ('model: "a\\0b.yaml"', "cannot read"),
    "a great many runs": ("runs: [" + "{}," * 2000 + "]", "2,000 runs, more than 1,000"),
    "an empty suite": ("{}", "has no run"),
    "a suite that says only what it is about": ("about: nothing", "has no run"),
    "a list of no runs": ("given: {seqlen: 4k}\nruns: []", "has no run"),
    "a name twice": ("seqlen: 4k\nseqlen: 8k", "the name 'seqlen' occurs twice"),
    "a megabyte": ("about: " + "x" * 2**20, "larger than 256 KiB"),
}


@pytest.mark.parametrize(("text", "why"), BAD_YAML.values(), ids=BAD_YAML)
def test_bad_yaml_is_one_line(text: str, why: str) -> None:
    Path("suite.yaml").write_text(text)
    done = asked("bench", "suite.yaml", *SMALL, "--dry-run")
    assert done.code == 2 and why in done.err
    assert not Path("owned").exists()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (("heads: 4,", f"heads: {'9' * 400},"), "of at most 65536"),
        (("hidden: 64", f"hidden: 1{'0' * 400}"), "of at most 1073741824"),
        (("layers: 2", "layers: [[[[1]]]]"), "must be a positive integer"),
    ],
    ids=["heads", "hidden", "layers"],
)
def test_models_of_no_size(change: tuple[str, str], why: str) -> None:
    Path("model.yaml").write_text(MODEL.replace(*change, 1))
    for words in (["topology", "--target", "v5e:2x2"], ["bench", *SMALL, "--pass", "step", "--dry-run"]):
        done = asked(*words, "--model", "model.yaml")
        assert done.code == 2 and why in done.err


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (f"{{kind: tpu, torus_dims: 400, slices: ['{'x'.join(['9999'] * 400)}']}}", "at most 3"),
        ("{kind: tpu, torus_dims: 1, devices_per_chip: 4096, slices: ['4096']}", "from 1 to 8"),
        ("{kind: tpu, figures: {clock_hz: {value: 1.0e-300, source: none}}}", "must be a positive number"),
    ],
    ids=["dimensions", "devices", "figures"],
)
def test_machines_of_no_size(text: str, why: str) -> None:
    Path("machine.yaml").write_text(text)
    done = asked("topology", "--target", "v5e:7", "--hardware", "machine.yaml")
    assert done.code == 2 and why in done.err


def test_a_source_says_nothing_to_the_terminal() -> None:
    source = '"\\e]0;owned\\a"'
    Path("machine.yaml").write_text(f"{{kind: tpu, figures: {{clock_hz: {{value: 1.0e+9, source: {source}}}}}}}")
    done = asked("topology", "--target", "v5e:4", "--hardware", "machine.yaml", "--quiet")
    assert done.code == 2 or ("owned" in done.out and "\x1b" not in done.out)


@settings(BOUNDED, max_examples=40)
@given(RANDOM, st.integers(0, 19))
def test_runs(random: Random, kind: int) -> None:
    content = json.dumps(hostile.mutated(hostile.run(random), random)).encode()
    packed = hostile.cut(gzip.compress(content), random)
    fresh(run_file, {0: packed, 1: page_of(packed)}.get(kind, content), draws=kind == 2)


def run_with(**changes: Any) -> bytes:
    """A run whose measurements say so."""
    content = json.loads(json.dumps(hostile.run(Random(0), most=3)))
    for m in content["measurements"]:
        m.update(changes)
    return json.dumps(content).encode()


def page_of(packed: bytes) -> bytes:
    return b'<!doctype html><a href="data:application/gzip;base64,' + base64.b64encode(packed) + b'">'


HEAD = b'{"schema": "stripectl.run/1", "id": "1", "created": "", "command": "", "environment": {}, "measurements": ['
BAD_RUNS = {
    "a version of 5000 digits": (b'{"schema": "stripectl.run/%s"}' % (b"9" * 5000), "newer than this stripectl"),
    "lists in lists": (run_with(cost_source=hostile.nested(200)), "nested too deeply"),
    "lists in lists around it": (HEAD + b"[" * 900 + b"]" * 900 + b"]}", "nested too deeply"),
    "a bomb of lists": (gzip.compress(HEAD + b"[]," * 2**23 + b"0]}", 1), "unpacks to more than"),
    "a bomb of zeros": (gzip.compress(bytes(2**28), 1), "unpacks to more than"),
    "a bomb in a page": (page_of(gzip.compress(bytes(2**28), 1)), "unpacks to more than"),
    "many samples": (run_with(samples_s=[1.0] * 10_001), "at most 10,000 samples"),
    "sixty million numbers": (gzip.compress(HEAD + b"0," * 60_000_000 + b"0]}", 1), "more than 16,777,216 values"),
    "many measurements": (HEAD + b"{}," * 2**17 + b"{}]}", "more than 131,072 measurements"),
    "a number too small": (run_with(median_s=1e-300), "not a number"),
    "a number too large": (run_with(median_s=1e299), "not a number"),
    "a number of 400 digits": (HEAD.replace(b"{}", b'{"host": {"ram_bytes": %s}}' % (b"9" * 400)) + b"]}", "too large"),
    "a gibibyte of heads": (
        run_with(workload={"seq_len": 4, "heads": 2**30, "kv_heads": 2**30, "head_dim": 4}),
        "heads",
    ),
}


@pytest.mark.parametrize(("content", "why"), BAD_RUNS.values(), ids=BAD_RUNS)
def test_bad_runs_are_one_line(content: bytes, why: str) -> None:
    Path("run.json").write_bytes(content)
    done = asked("report", "run.json")
    assert done.code == 2 and why in done.err


BIDI = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"  # they change the order of text


@pytest.mark.parametrize("text", ["[/bold]", "\x1b]0;owned\x07", "\ud800", "\x9b2J", BIDI], ids=ascii)
def test_texts_of_a_run_are_text(text: str, folder: Path) -> None:
    said = {"target": text, "reason": text, "cost_source": {"source": "datasheet", "left_out": text, text: 1.0}}
    run_file(run_with(plan=f"ring/striped/xla@ring=2{text}", **said), folder)
    run_file(run_with(**said), folder, draws=True)
    run = str(folder / "stripectl-runs" / "one")
    for words in (("report", run, "--format", "md"), ("compare", run, run), ("history", str(folder / "kept"))):
        done = asked(*words)
        assert not done.code and not {"\x1b", "\x07", "\x9b", "\ud800", *BIDI} & {*done.out}
    assert not {*BIDI} & {*(folder / "page.html").read_text(encoding="utf-8")}


def test_as_many_samples_as_a_run_may_hold() -> None:
    """Bootstrapped within the memory that is watched."""
    Path("run.json").write_bytes(run_with(method="measured", samples_s=[1.0, 2.0] * 5000))
    assert not asked("report", "run.json", "--format", "md").code
    assert not asked("compare", "run.json", "run.json").code


@settings(BOUNDED, max_examples=80)
@given(st.sampled_from(sorted(PROFILES.glob("*.txtpb"))), RANDOM, st.sampled_from(["text", "bytes", "program"]))
def test_profiles(path: Path, random: Random, spoilt: str) -> None:
    text, program = path.read_text(), (PROFILES / "ring.hlo.txt").read_text()
    if spoilt == "text":
        text = hostile.redrawn(text, random)
    if spoilt == "program":
        program = hostile.cut(program.encode(), random).decode("utf-8", "replace")
    content = xspace(text)
    fresh(profile, hostile.cut(content, random) if spoilt == "bytes" else content, program, {"ring": 2})


def test_the_program_of_a_profile_is_written_nowhere_else(folder: Path) -> None:
    """xprof puts every program beside the profile that it reads, in a file by the program's name."""
    text = (PROFILES / "cpu.txtpb").read_text() + hostile.program_of("../owned")
    profile(xspace(text), None, {}, folder)


def test_a_collective_of_more_devices_than_there_are(folder: Path) -> None:
    program = (PROFILES / "ring.hlo.txt").read_text()
    groups = "replica_groups=[2,4000000000]<=[8000000000]"
    program, count = re.subn(r"source_target_pairs=\{[^ ]*\}", groups, program)
    assert count
    content = xspace((PROFILES / "tpu.txtpb").read_text())
    profile(content, program, {}, folder)


def test_a_transfer_that_takes_no_time(folder: Path) -> None:
    text = re.sub(r"duration_ps: \d+", "duration_ps: 0", (PROFILES / "tpu.txtpb").read_text())
    profile(xspace(text), (PROFILES / "ring.hlo.txt").read_text(), {}, folder)


@settings(BOUNDED, max_examples=60)
@given(RANDOM)
def test_options(random: Random) -> None:
    fresh(command_line, hostile.options(random))


def test_a_ring_of_more_shards_than_can_be_counted_is_refused() -> None:
    done = asked("bench", *SMALL, "--target", "8192*h100:8", "--seqlen", "1G", "--tile", "1024", "--dry-run")
    assert done.code == 2 and "refused: 65536 shards form more pairs than can be counted" in done.out


def numbered(first: int, last: int) -> str:
    return ",".join(map(str, range(first, last)))


BAD_OPTIONS = {
    "heads": (["--heads", str(2**30)], "heads must be an integer from 1 to 65536"),
    "heads of linear attention": (
        ["--heads", str(2**30), "--attention", "linear", "--decay", "per-head"],
        "heads must be",
    ),
    "flags": ([w for at in range(9) for w in ("--xla-flag", f"f{at}={numbered(0, 10)}")], "a grid of 1,000,000,000"),
    "tiles": (["--tile", numbered(1, 20_000)], "a grid of 19,999"),
    "unrolling": (["--unroll", numbered(1, 20_000)], "a grid of 19,999"),
    "lengths": (["--seqlen", numbered(1, 20_000)], "a grid of 19,999"),
    "lengths and flags": (["--seqlen", numbered(1, 200), "--xla-flag", f"a={numbered(0, 200)}"], "a grid of 39,800"),
    "meshes": (["--target", "4096*h100:8", "--scheme", "all", "--mesh", "auto", "--unroll", "1,2,3,4"], "65,536 plans"),
    "documents": (["--seqlen", "1G", "--documents", "1k"], "at most 16777216 tokens"),
    "a budget": (["--time-budget", "9" * 400], "not a duration of at most 480 hours"),
    "a limit": (["--compile-timeout", "481h"], "not a duration of at most 480 hours"),
    "a name": (["--model", "x" * 5000], "unknown model"),
    "a path": (["--model", "x/" * 5000], "cannot read"),
    "a file without end": (["--model", "/dev/zero"], "it is not a regular file"),
}


@pytest.mark.parametrize(("words", "why"), BAD_OPTIONS.values(), ids=BAD_OPTIONS)
def test_what_no_machine_holds_is_one_line(words: list[str], why: str) -> None:
    done = asked("bench", *SMALL, *words, "--dry-run")
    assert done.code == 2 and why in done.err
