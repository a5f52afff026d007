"""`stripectl check`: exit codes, what it writes, and the claims of the examples."""

import json
from pathlib import Path

import pytest
from junitparser import JUnitXml

from stripectl.reporters.ci import SUMMARY
from tests.support.command import run
from tests.support.factories import FAST, SLOW, run_of, sampled_measurement_of

ROOT = Path(__file__).parents[2]
EXAMPLE, RUNS = ROOT / "examples" / "claims.yaml", sorted((ROOT / "examples" / "runs").glob("*.json.gz"))


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(SUMMARY, raising=False)
    rings = {"ring/contiguous/xla@ring=8,tile=512x512": SLOW, "ring/striped/xla@ring=8,tile=512x512": FAST}
    run_of(*map(sampled_measurement_of, rings, rings.values())).save(tmp_path / "stripectl-runs" / "one")
    return tmp_path


GOOD, INCONCLUSIVE, BAD = "striped >= 1.8 x ring", "striped >= 2 x ring", "striped >= 3 x ring"


@pytest.mark.parametrize(
    ("claims", "options", "code"),
    [
        ([GOOD], [], 0),
        ([GOOD, INCONCLUSIVE], [], 0),
        ([GOOD, INCONCLUSIVE], ["--strict"], 1),
        ([GOOD, BAD], [], 1),
        (["ring >= ring"], [], 2),
        (["nonsense"], [], 2),
        ([GOOD], ["no-such-run"], 2),
    ],
)
def test_exit_codes(claims: list[str], options: list[str], code: int, folder: Path, capsys) -> None:
    path = written(folder / "claims.yaml", json.dumps({"claims": claims}))
    assert run("check", str(path), *options) == code
    told = capsys.readouterr()
    assert (code == 2) == told.err.startswith("error: ") and "Traceback" not in told.err
    assert code == 2 or all(f"{claim}  " in told.out for claim in claims), "nothing is cut"


def test_everything_is_written(folder: Path, capsys, monkeypatch) -> None:
    path = written(folder / "claims.yaml", json.dumps({"about": "us", "claims": [GOOD, INCONCLUSIVE, BAD]}))
    monkeypatch.setenv(SUMMARY, str(folder / "summary.md"))
    assert run("check", str(path), "--json", "--junit", "out/j.xml", "--markdown", "c.md") == 1
    told = capsys.readouterr()
    content = json.loads(told.out)
    assert [each["verdict"] for each in content["claims"]] == ["PASS", "INCONCLUSIVE", "FAIL"] and not content["holds"]
    assert content["claims"][2]["findings"][0]["value"] == pytest.approx(2.0, rel=0.05)
    assert "1 passes, 1 is inconclusive, 1 fails" in told.err
    (suite,) = JUnitXml.fromfile("out/j.xml")
    assert (suite.tests, suite.failures, suite.skipped) == (3, 1, 1)
    markdown = (folder / "c.md").read_text()
    assert markdown == (folder / "summary.md").read_text()
    assert (
        markdown.startswith("### stripectl check: 1 passes, 1 is inconclusive, 1 fails\n")
        and "FAIL</summary>" in markdown
    )


def test_a_narrow_screen_keeps_verdicts_and_claims(folder: Path, capsys, monkeypatch) -> None:
    from rich.console import Console

    monkeypatch.setattr("stripectl.reporters.terminal.screen.console", lambda **_: Console(width=40))
    run("check", str(written(folder / "claims.yaml", json.dumps({"claims": [BAD + " on this machine"]}))))
    shown = " ".join(capsys.readouterr().out.split())
    assert "FAIL" in shown and all(word in shown for word in BAD.split())


def test_the_examples_hold(capsys) -> None:
    assert run("check", str(EXAMPLE), *map(str, RUNS), "--strict") == 0
    assert "11 pass" in capsys.readouterr().out


def test_each_example_fails_where_its_run_is_not(capsys) -> None:
    empty = next(str(path) for path in RUNS if path.name == "empty.json.gz")
    assert run("check", str(EXAMPLE), empty) == 1
    assert "11 fail" in capsys.readouterr().out
