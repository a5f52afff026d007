"""The notebook of the examples, executed cell by cell as a kernel does: the last expression of a cell is its value."""

import ast
import json
from pathlib import Path

import pytest

import stripectl
from stripectl.statistics.verdict import Verdict

NOTEBOOK = Path(__file__).parents[1] / "examples" / "notebook.ipynb"


def executed(source: str, names: dict[str, object]) -> object:
    """The value of a cell."""
    *body, last = ast.parse(source).body
    if not isinstance(last, ast.Expr):
        body, last = [*body, last], None
    exec(compile(ast.Module(body, []), "cell", "exec"), names)
    return eval(compile(ast.Expression(last.value), "cell", "eval"), names) if last else None


def test_every_cell_runs_and_the_last_one_shows_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    assert all(not cell["outputs"] for cell in cells if cell["cell_type"] == "code"), "outputs are not kept"
    names: dict[str, object] = {}
    values = [executed("".join(cell["source"]), names) for cell in cells if cell["cell_type"] == "code"]
    *_, plan, verdicts, run = values
    assert isinstance(run, stripectl.Run) and run.recommendation
    assert isinstance(plan, tuple) and plan[0] == run.recommendation.plan.scheme
    assert verdicts == {Verdict.UNCHANGED}
    shown = run._repr_html_()
    assert shown and shown.startswith("<iframe srcdoc=")
    assert run.recommendation.answer in capsys.readouterr().out
    assert not list(tmp_path.iterdir()), "a run without a folder leaves no file"
