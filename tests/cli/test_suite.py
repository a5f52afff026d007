"""Suites: a file of runs, checked like a command line."""

import json
from pathlib import Path

import pytest

from stripectl.analysis.striped_attention_paper import published_comparisons, published_rows
from stripectl.core.workload import Workload
from stripectl.models.model_files import load_model
from stripectl.results.measurement import Measurement
from tests.support.command import run
from tests.support.factories import measurement_of

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*-paper.yaml"))
ON_PAPER = "target: v5p:8\nmethod: simulated\nseqlen: 64k\n"


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)


def bench(text: str, *arguments: str) -> tuple[int, list[dict]]:
    Path("suite.yaml").write_text(text)
    code = run("bench", "suite.yaml", "--quiet", "--output", "run", *arguments)
    found = json.loads(Path("run/run.json").read_text())["measurements"] if Path("run/run.json").exists() else []
    return code, found


def test_runs_share_what_is_given_and_the_command_line_goes_before_them() -> None:
    suite = "given:\n  target: v5p:8\n  method: simulated\n  pass: forward\n  layout: [striped, zigzag]\nruns:\n"
    suite += "  - {seqlen: [16k, 32k], mesh: ['ring=8', 'ring=4,tensor=2']}\n  - {seqlen: 64k, layout: zigzag}\n"
    code, found = bench(suite, "--pass", "forward-backward")
    assert code == 0 and {m["pass"] for m in found} == {"forward-backward"}
    ring = [m for m in found if "ring=1" not in m["plan"]]
    assert [m["workload"]["seq_len"] // 1024 for m in ring] == [16] * 4 + [32] * 4 + [64]
    assert len({m["plan"].partition(",tile")[0] for m in ring}) == 4


def test_a_flag_that_is_off_says_so(monkeypatch) -> None:
    asked = []
    monkeypatch.setattr("stripectl.runner.bench.bench", lambda request, *_: asked.append(request.use_cache) or iter(()))
    bench("given: " + "{" + ", ".join(ON_PAPER.split("\n")[:-1]) + "}\nruns: [{cache: false}, {no-cache: true}, {}]\n")
    assert asked == [False, False, True]


def test_options_alone_are_one_run() -> None:
    code, found = bench(ON_PAPER + "plan: ring/striped/xla@ring=8,tile=512\npass: forward\n")
    assert code == 0 and found[0]["plan"] == "ring/striped/xla@ring=8,tile=512x512"


@pytest.mark.parametrize("passes", ["forward-backward", "step"])
def test_the_yaml_of_a_recommendation_is_a_suite(passes: str) -> None:
    code, _ = bench(ON_PAPER + f"pass: {passes}\nlayers: 4\n" if passes == "step" else ON_PAPER)
    assert code == 0
    best = json.loads(Path("run/run.json").read_text())["recommendation"]
    Path("again.yaml").write_text(best["use"]["yaml"]["text"])
    assert run("bench", "again.yaml", "--quiet", "--output", "again") == 0
    again = json.loads(Path("again/run.json").read_text())["measurements"][0]
    assert (again["plan"], again["median_s"], again["workload"]) == (
        best["plan"],
        best["median_s"],
        best["workload"],
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("runs: 3\n", "is not a suite"),
        ("given: [1]\n", "is not a suite"),
        ("- a\n", "is not a mapping"),
        ("seqlen: [\n", "is not YAML"),
        ("seqln: 64k\n", "Did you mean seqlen"),
        ("runs: [{seqlen: 64k}, {min-samples: none}]\n", "run 2 of the suite suite.yaml"),
        (ON_PAPER + "layout: stripd\n", "Did you mean striped"),
        (ON_PAPER + "out: elsewhere\n", "unknown option in run 1"),
    ],
)
def test_a_bad_suite_is_one_line_that_says_where(capsys, text: str, said: str) -> None:
    code, found = bench(text)
    error = capsys.readouterr().err
    assert code == 2 and said in error and len(error.splitlines()) == 1 and not found


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_is_a_suite_that_runs(capsys, path: Path) -> None:
    assert run("bench", str(path), "--dry-run", "--quiet") == 0 and ", 0 refused" in capsys.readouterr().out


def step(plan: str, seconds: float, target: str, model: str, seq_len: int) -> Measurement:
    workload = Workload(seq_len=seq_len, model=model, passes="step", **load_model(model).step_sizes)
    return measurement_of(plan, seconds, workload, target)


def test_the_papers_grid_is_the_suites() -> None:
    """Every published row is a run of the suite, simulated, of both layouts."""
    found = {key for key, _ in published_rows().items()}
    assert len(found) == 137
    assert run("bench", str(EXAMPLES[1]), "--dry-run", "--quiet") == 0


def test_steps_stand_beside_what_was_published() -> None:
    plan = "ring/{}/xla@ring=8,tensor=2,tile=2048x2048"
    both = [
        step(plan.format(each), seconds, "v4:2x2x4", "1b", 2**18)
        for each, seconds in (("contiguous", 3.0), ("striped", 2.0))
    ]
    (found,) = published_comparisons(both)
    assert (found.hardware, found.mesh, found.published, found.ours) == ("v4", "ring=8,tensor=2", 1.37, 1.5)
    assert found.tms == pytest.approx(1.81, abs=0.005) and found.error == pytest.approx(1.5 / 1.37 - 1)
    assert (
        published_comparisons(both[1:]) == []
        and published_comparisons([step(plan.format("striped"), 2.0, "v4:2x2x4", "1b", 2**10)]) == []
    )
