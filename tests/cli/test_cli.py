"""The command line as a user meets it: exit codes, one clear line for bad input, and nothing lost."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from stripectl import Run, bench, trace, tune_tiles
from stripectl.cli.app import COMMANDS, SUMMARIES, group
from stripectl.errors import Missing
from tests.support.command import ON_PAPER, run


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)


GOOD_MODEL = "hidden: 64\nfeed_forward: 128\nlayers: 2\nheads: 4\nkv_heads: 4\nhead_dim: 16\nvocabulary: 100\n"
BAD = [
    (["--seqlen", "0"], "out of range"),
    (["--seqlen", "-5"], "not a length"),
    (["--seqlen", "abc"], "not a length"),
    (["--seqlen", "256q"], "not a length"),
    (["--seqlen", "10**12"], "not a length"),
    (["--seqlen", str(10**12)], "out of range"),
    (["--seqlen", ""], "not a length"),
    (["--query-len", ""], "not a length"),
    (["--documents", ""], "not a length"),
    (["--plan", "ring", "--scheme", "ulysses"], "Omit --scheme"),
    (["--batch", "1" + 300 * "0"], "from 1 to"),
    (["--seqlen", "max", "--method", "simulated", "--target", "cpu:2"], "--method compiled"),
    (["--seqlen", "8k", "--tile", "4096"], "larger than the 1024 rows of a shard"),
    (["--seqlen", "8k", "--tile", "0"], "not a tile"),
    (["--seqlen", "8k", "--mesh", "ring=16"], "needs 16 devices and the target has 8"),
    (["--seqlen", "8k", "--mesh", "rign=8"], "Did you mean ring"),
    (["--heads", "7", "--mesh", "ring=4,tensor=2"], "7 heads cannot be divided over tensor=2"),
    (["--heads", "1", "--scheme", "ulysses", "--mesh", "ulysses=8"], "1 head cannot be divided over ulysses=8"),
    (["--heads", "7", "--kv-heads", "2"], "cannot share"),
    (["--scheme", "rnig"], "Did you mean ring"),
    (["--layout", "stripd"], "Did you mean striped"),
    (["--kernel", "xl"], "Did you mean xla"),
    (["--model", "1c"], "Did you mean 1b"),
    (["--model", "nothing.yaml"], "cannot read"),
    (["--model", "wrong-type.yaml"], "must be a positive integer"),
    (["--model", "missing-field.yaml"], "has no 'layers'"),
    (["--plan", "ring/striped/xla@ring=8;rm"], "is not name=number"),
    (["--plan", "garbage!!"], "is not a plan"),
    (["--target", "xyz:3"], "unknown hardware"),
    (["--target", "v5e:3x5"], "Nearest: v5e:4x4 (v5e-16)"),
    (["--target", "h100:12"], "Try h100:8 or 2*h100:8"),
    (["--time-budget", "soon"], "is not a duration"),
    (["--dtype", "float16"], "Did you mean bfloat16"),
    (["--min-samples", "0"], "is not in the range"),
    (["--output", "/proc/nowhere"], "Try --output"),
    (["--output", "a-file/run"], "Try --output"),
    (["--seqlen", "1G", "--tile", "1"], "too many rows of tiles"),
    (["--resume"], "cannot read"),
    (["--method", "measured"], "is not here"),
]


@pytest.mark.parametrize(("arguments", "why"), BAD, ids=[" ".join(arguments) for arguments, _ in BAD])
def test_bad_input_is_one_clear_line(arguments: list[str], why: str, capsys) -> None:
    Path("a-file").write_text("")
    Path("wrong-type.yaml").write_text(GOOD_MODEL.replace("heads: 4\nkv", "heads: many\nkv"))
    Path("missing-field.yaml").write_text(GOOD_MODEL.replace("layers: 2\n", ""))
    before = sorted(Path().iterdir())
    assert run(*ON_PAPER, *arguments) == (3 if "measured" in arguments else 2)
    shown = capsys.readouterr()
    lines = shown.err.splitlines()
    assert lines[0].startswith("error: ") and why in lines[0]
    assert len(lines) == 1 or (len(lines) == 2 and lines[1].startswith("Try: "))
    assert shown.out == ""
    assert sorted(Path().iterdir()) == before


TRACED = "ring/striped/xla@ring=2"
ABSENT = [
    ["bench", "--method", "measured", "--plan", TRACED],
    ["bench", "--method", "measured", "--plan", TRACED, "--profile"],
    ["tune-tiles", "--method", "measured", "--plan", TRACED],
    ["trace", TRACED],
]


@pytest.mark.parametrize("target", ["v5p:2x2x4", "h100:8", "cpu:256"])
@pytest.mark.parametrize("words", ABSENT, ids=" ".join)
def test_advice_for_an_absent_machine_names_options_that_the_command_has(
    words: list[str], target: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shards = 256 if target.startswith("cpu") else 8
    many = [each.replace("ring=2", f"ring={shards}") for each in words]  # more devices than are here
    assert run(*many, "--seqlen", "64k", "--pass", "forward", "--target", target) == 3
    fact, _, advice = capsys.readouterr().err.partition(" Try ")
    assert f"cannot measure {target} because it is not here" in fact and "time tiles" not in fact
    clauses = advice.split(", or ")
    assert len(clauses) == (2 if target.startswith("cpu") else 1)
    for clause in clauses:
        named = re.search(r"stripectl (\S+)", clause)
        command = group.get_command(click.Context(group), named[1] if named else words[0])
        assert command
        known = {name for option in command.params for name in option.opts}
        assert set(re.findall(r"--[a-z-]+", clause)) <= known and "--" in clause


@pytest.mark.parametrize("function", [bench, tune_tiles, trace], ids=lambda function: function.__name__)
def test_functions_give_the_same_advice(function: Callable[..., Run]) -> None:
    given = {"target": "v5p:2x2x4", "seqlen": "64k", "progress": False}
    with pytest.raises(Missing, match=r"Try (stripectl bench --method simulated|method='simulated')\.$"):
        function(TRACED, **given) if function is trace else function(method="measured", **given)


@pytest.mark.parametrize("command", ["report", "compare"])
@pytest.mark.parametrize(
    ("content", "why"),
    [(None, "cannot read"), (b"\x93\xff\x00", "is not JSON"), (b'{"schema": "stripectl.run/1", "id"', "cut short")],
)
def test_unreadable_runs(command: str, content: bytes | None, why: str, capsys) -> None:
    if content is not None:
        Path("run.json").write_bytes(content)
    assert run(command, *["run.json"] * (2 if command == "compare" else 1)) == 2
    assert why in capsys.readouterr().err


def test_unknown_commands_and_none() -> None:
    assert run("bnech") == 2
    assert run() == 2
    assert run("--help") == 0
    assert run("--version") == 0


def test_a_bench_on_paper_writes_its_run_and_report(capsys) -> None:
    assert run(*ON_PAPER, "--seqlen", "64k", "--pass", "forward") == 0
    content = json.loads(Path("run/run.json").read_text())
    assert [m["plan"].split("@")[0] for m in content["measurements"]] == [
        "ring/contiguous/splash",
        "ring/striped/splash",
        "ring/zigzag/splash",
        "ring/contiguous/splash",
    ]
    assert {m["method"] for m in content["measurements"]} == {"simulated"}
    assert all(m["cost_source"]["source"] == "bundles" for m in content["measurements"])
    assert all(m["cost_source"]["table"] == "profiles/kernels/v5p.yaml" for m in content["measurements"])
    assert all(m["overlap"] is None and m["samples_s"] == [] for m in content["measurements"])
    assert Path("run/report.html").stat().st_size > 1000
    assert "run/report.html" in capsys.readouterr().out


def test_json_is_alone_on_stdout(capsys) -> None:
    assert run(*ON_PAPER, "--seqlen", "64k", "--json") == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["schema"] == "stripectl.run/3"
    assert "ring/striped" in shown.err


def test_a_run_is_never_overwritten(capsys) -> None:
    assert run(*ON_PAPER, "--seqlen", "64k") == 0
    before = Path("run/run.json").read_text()
    assert run(*ON_PAPER, "--seqlen", "64k") == 2
    assert "--resume" in capsys.readouterr().err
    assert Path("run/run.json").read_text() == before


def test_resume_makes_only_what_is_missing() -> None:
    assert run(*ON_PAPER, "--seqlen", "64k", "--layout", "striped,zigzag") == 0
    assert run(*ON_PAPER, "--seqlen", "64k", "--resume") == 0
    plans = [(m["pass"], m["plan"]) for m in json.loads(Path("run/run.json").read_text())["measurements"]]
    assert len(plans) == len(set(plans)) == 8


def test_refused_members_of_a_grid_do_not_fail_it_but_a_named_plan_does(capsys) -> None:
    assert run(*ON_PAPER, "--seqlen", "8k,1000") == 0
    assert "Try --seqlen 992" in capsys.readouterr().out
    named = ["--plan", "ring/striped", "--plan", "ring/striped@ring=3", "--output", "named"]
    assert run(*ON_PAPER, "--seqlen", "8k", *named) == 2
    assert len(json.loads(Path("named/run.json").read_text())["measurements"]) == 6


def test_what_a_datasheet_lacks_is_refused_and_the_rest_goes_on() -> None:
    assert run(*ON_PAPER, "--seqlen", "64k", "--dtype", "float32,bfloat16", "--pass", "forward") == 0
    found = json.loads(Path("run/run.json").read_text())["measurements"]
    assert {(m["workload"]["dtype"], m["status"]) for m in found} == {("float32", "refused"), ("bfloat16", "ok")}


def test_bounds_stand_only_beside_speedups_of_their_own_scheme(capsys) -> None:
    assert run(*ON_PAPER, "--seqlen", "64k", "--pass", "forward", "--scheme", "all", "--tile", "512") == 0
    shown = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if "/splash@" in line}
    assert "1.77x" in next(line for name, line in shown.items() if name.startswith("ring/striped"))
    assert "1.77x" not in next(line for name, line in shown.items() if name.startswith("all_gather/striped"))


def test_a_dry_run_runs_and_writes_nothing(capsys) -> None:
    assert run(*ON_PAPER, "--seqlen", "8k,1000", "--dry-run") == 0
    shown = capsys.readouterr().out
    assert "10 to run, 2 refused" in shown
    assert not Path("run").exists()


@pytest.mark.parametrize(("target", "dtype"), [("cpu:2", "float32"), ("v5p:8", "bfloat16")])
def test_the_dtype_that_nobody_asked_for_fits_the_target(target: str, dtype: str, capsys) -> None:
    assert run("bench", "--target", target, "--seqlen", "8k", "--dry-run", "--quiet") == 0
    assert f", {dtype}, causal" in capsys.readouterr().out
    assert run("bench", "--target", target, "--seqlen", "8k", "--dry-run", "--quiet", "--dtype", "float32") == 0
    assert ", float32, causal" in capsys.readouterr().out


def test_tables_that_are_piped_are_whole(capsys) -> None:
    assert run(*ON_PAPER, "--seqlen", "64k") == 0
    assert "…" not in capsys.readouterr().out


def test_topology_of_a_target(capsys) -> None:
    assert run("topology", "--target", "v5p:2x2x4", "--model", "llama3-8b") == 0
    shown = capsys.readouterr().out
    assert "16 devices" in shown and "5,100" in shown and "1,275" in shown and "n/a" in shown


TOPOLOGIES = [
    ("v5e-16", "ring=16", "ring=16: every hop is one link, the last hop returns without a wrap-around link"),
    ("v5e:1x8", "ring=8", "the last hop crosses 7 links, 6.00 us more than the others"),
    ("v5e:16x16", "ring=16,tensor=16", "ring=16: every hop is one link, the last hop returns over a wrap-around link"),
    ("v5e:4x4", "ring=4,tensor=4", "tensor=4: 2 links each; 2 transfers share a link, 22.5 GB/s each"),
    ("2*v5e:4x4", "data=2,ring=16", "data=2: every hop crosses the network between slices, at 3.12 GB/s one way"),
    ("2*h100:8", "ring=16", "ring=16: 2 of 16 hops cross the network between nodes, at 50.0 GB/s one way"),
    ("2*h100:8", "ring=16", "smallest block whose hop hides at 50.0 GB/s"),
    ("2*v3-8", "ring=16", "smallest block whose hop hides at n/a"),
    ("v3-8", "ring=8", "or none between cores of a chip, the last hop returns"),
    ("tpu7x:1x1x1", "ring=2", "every hop is between the cores of a chip"),
    ("v5e-256", "ring=8", "and 56 more hosts"),
    ("cpu:4", "ring=1", "one device"),
]


@pytest.mark.parametrize(("target", "mesh", "said"), TOPOLOGIES)
def test_topology_says_where_a_mesh_lies(target: str, mesh: str, said: str, capsys) -> None:
    assert run("topology", "--target", target, "--mesh", mesh, "--quiet") == 0
    assert said in capsys.readouterr().out


def test_topology_as_json(capsys) -> None:
    assert run("topology", "--target", "2*v5e:2x2", "--json", "--quiet") == 0
    content = json.loads(capsys.readouterr().out)
    assert (content["devices"], content["hosts"], len(content["positions"])) == (8, 2, 8)
    assert sorted(content["order"]) == list(range(8))
    assert content["axes"]["ring"]["onward"]["network"].count(True) == 2
    assert min(content["axes"]["ring"]["hops"]["bytes_per_s"][0]) == 3.125e9


def test_topology_refuses_a_mesh_that_is_too_large(capsys) -> None:
    assert run("topology", "--target", "v5e:2x2", "--mesh", "ring=8") == 2
    assert "needs 8 devices and v5e:2x2 has 4" in capsys.readouterr().err


def test_list_has_every_target(capsys) -> None:
    assert run("list", "targets") == 0
    shown = capsys.readouterr().out
    rows = {tuple(line.split()[:2]) for line in shown.splitlines()}
    assert ("v5p-17920", "v5p:16x20x28") in rows and "h100:1 to h100:8" in shown and "cpu:N" in shown
    assert len(shown.splitlines()) > 223
    assert run("list") == 0
    shown = capsys.readouterr().out
    assert "96 sizes sold" in shown and "linear-llama-1b-hybrid  LLLS attention, 16 layers" in shown


@pytest.mark.parametrize("name", COMMANDS)
def test_commands_say_what_they_do_once(name: str) -> None:
    command = group.get_command(None, name)  # type: ignore[arg-type]
    assert command and command.help
    assert command.help.splitlines()[0] == SUMMARIES[name]
    assert "Examples:" in command.help


def test_a_bench_that_profiles_nothing_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*ON_PAPER, "--seqlen", "8k", "--pass", "forward", "--profile") == 0
    assert "profile none: only plans that run here can be profiled. Try --method measured." in capsys.readouterr().out
