"""Runs side by side, and reports as markdown and JSON: as data, and by the command."""

import gzip
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from stripectl.cli.report import command
from stripectl.errors import BadInput
from stripectl.reporters.html.bar_chart import Bars
from stripectl.reporters.html.side_by_side import side_by_side_context
from stripectl.results.run import Run
from tests.support.factories import LONG, because, run_of, timed_ring
from tests.support.pages import HOSTILE, Page, check_harmless, markdown_of, page_of, page_of_several

MARKUP = (
    *("a | b", "`` ` ``", "</details>", "@everyone #1 [x](javascript:y)", "```\nx"),
    "x\n\n[y](https://z.example) www.z.example $a$",
)
ROOT = Path(__file__).parents[2]
RUNS = sorted((ROOT / "examples" / "runs").glob("*.json.gz"))


def two(**environment: object) -> list[Run]:
    """The same plans twice, the second time zigzag in half the time and striped refused."""
    first = run_of(
        timed_ring("contiguous", 0.8), timed_ring("striped", 0.6), timed_ring("zigzag", 0.5), versions={"jax": "0.10"}
    )
    second = run_of(
        timed_ring("contiguous", 0.8),
        replace(timed_ring("striped", 0.6), status="refused", median_s=None, reason=because("no")),
        timed_ring("zigzag", 0.25),
        versions={"jax": "0.11"},
        **environment,
    )
    return [first, replace(second, id="two")]


def report(*words: object):
    return CliRunner().invoke(command, [str(each) for each in words], standalone_mode=False)


def test_runs_are_compared_measurement_by_measurement() -> None:
    found = side_by_side_context(two())
    changes = {row[0].split("/")[1]: row[-2:] for row in found["changes"]["rows"]}
    assert [row[0].split("/")[1] for row in found["unchanged"]["rows"]] == ["contiguous"]
    assert "contiguous" not in changes
    assert changes["zigzag"][0].startswith("-50.0% [")
    assert changes["zigzag"][1] == "IMPROVED"
    assert changes["striped"][1] == "FAILED"


def test_equal_runs_say_that_nothing_changed() -> None:
    run = two()[0]
    found = side_by_side_context([run, run])
    count = len(found["unchanged"]["rows"])
    assert found["answer"] == f"Against run A: {count} measurements and no change in B."
    assert not found["changes"]["rows"]


def test_what_differs_around_them_is_told() -> None:
    found = side_by_side_context(two(host={"cores": 2}))
    assert ["versions: jax", "0.10", "0.11"] in found["differing"]["rows"]
    assert ["host: cores", "n/a", "2"] in found["differing"]["rows"]


def test_bars_bear_the_letter_of_their_run() -> None:
    (group,) = side_by_side_context(two())["part"]["groups"]
    (chart,) = group["charts"]
    assert isinstance(chart.drawing, Bars)
    assert [bar.name.split("@")[0] for bar in chart.drawing.bars] == [
        "A  ring/zigzag/xla",
        "B  ring/zigzag/xla",
        "A  ring/striped/xla",
        "A  ring/contiguous/xla",
        "B  ring/contiguous/xla",
    ]


def test_machines_with_other_dtypes_stand_side_by_side_and_say_so() -> None:
    other = run_of(timed_ring("zigzag", 0.1, "compiled", replace(LONG, dtype="bfloat16")))
    found = side_by_side_context([run_of(timed_ring("zigzag", 0.3, "simulated", LONG)), other])
    assert found["changes"]["rows"] == []
    ((chart,),) = (group["charts"] for group in found["part"]["groups"])
    assert [row[3] for row in chart.table["rows"]] == ["float32", "bfloat16"]


@pytest.mark.parametrize("text", HOSTILE)
def test_a_page_of_several_is_harmless(text: str) -> None:
    runs = [replace(run, id=text, command=text, environment={"warnings": [text], text: text}) for run in two()]
    page = Page(page_of_several(runs))
    check_harmless(page)


def test_markdown_has_the_verdict_and_the_numbers() -> None:
    text = markdown_of(two()[:1])
    assert text.startswith("### stripectl: zigzag is fastest\n")
    assert "| plan | `ring/zigzag/xla@ring=4,tile=64x64` |" in text
    assert "| `ring/zigzag/xla@ring=4,tile=64x64` | forward | measured | 500 ms ±1.0% | 1.60x" in text
    assert text.count("<details>") == text.count("</details>") == 1
    both = markdown_of(two())
    assert "| B | zigzag is fastest |" in both
    assert "IMPROVED |" in both


@pytest.mark.parametrize("text", [*HOSTILE, *MARKUP])
def test_markdown_is_never_more_than_text(text: str) -> None:
    (run, _) = two()
    odd = [replace(m, workload=replace(m.workload, model=text), flags={text: text}) for m in run.measurements]
    odd.append(replace(odd[0], status="refused", median_s=None, reason=because(text)))
    shown = markdown_of([replace(run, id=text, command=text, environment={"warnings": [text]}, measurements=odd)])
    lines = shown.splitlines()
    (folded,) = (line for line in lines if line.startswith("<details>"))
    assert folded.endswith("</summary>") and folded.count("<") == 3 and "://" not in folded
    begin = next(at for at, line in enumerate(lines) if line.startswith("```"))
    assert lines[begin] == lines[begin + 2] and lines[begin] not in lines[begin + 1]
    said = next(line for line in lines if line.startswith("**Warning.**"))
    assert not set("<[|$") & {char for at, char in enumerate(said) if said[at - 1 : at] != "\\"}
    assert not re.search(r"://|www\.|(?<![\w])@\w|#\d", said)


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.name.partition(".")[0])
def test_markdown_of_the_examples_fits_a_comment(path: Path) -> None:
    text = markdown_of([Run.load(path)])
    assert 50 < len(text) < 65_536
    assert text.count("<details>") == text.count("</details>")


def test_the_command_takes_several_and_every_format(tmp_path: Path) -> None:
    for name, run in zip(("old", "new"), two(), strict=True):
        run.save(tmp_path / name)
    made = report(tmp_path / "old", tmp_path / "new", "--no-open")
    assert made.output.strip() == str(tmp_path / "new" / "side-by-side.html")
    assert "2 runs side by side" in (tmp_path / "new" / "side-by-side.html").read_text()
    assert report(tmp_path / "old", "--format", "md").output.startswith("### stripectl: zigzag")
    told = json.loads(report(tmp_path / "old", "--format", "json").output)
    assert told["recommendation"]["headline"] == "zigzag is fastest"
    assert len(json.loads(report(tmp_path / "old", tmp_path / "new", "--format", "json").output)["runs"]) == 2
    report(tmp_path / "old", "--format", "md", "-o", tmp_path / "comment.md")
    assert (tmp_path / "comment.md").read_text().startswith("### stripectl")


def test_a_report_is_read_as_the_run_it_carries(tmp_path: Path) -> None:
    run = Run.load(two()[0].save(tmp_path))
    (tmp_path / "sent.html").write_text(page_of(run))
    again = report(tmp_path / "sent.html", "-o", tmp_path / "again.html", "--no-open")
    assert again.exception is None
    assert (tmp_path / "again.html").read_text() == (tmp_path / "sent.html").read_text()
    assert isinstance(report(tmp_path / "sent.html", "--no-open").exception, BadInput)  # it would replace it


NOT_RUNS = {
    "a page without a run": b"<!doctype html><p>no run",
    "a page that is cut": b'<!doctype html><a href="data:application/gzip;base64,AAA=">',
    "packed, cut": gzip.compress(b"{")[:-4],
    "packed, no JSON": gzip.compress(b"not json"),
    "not packed": b"\x1f\x8bnot gzip",
    "no text": b"\xff\xfe",
}


@pytest.mark.parametrize("name", NOT_RUNS)
def test_what_carries_no_whole_run_is_refused_in_a_line(tmp_path: Path, name: str) -> None:
    (tmp_path / "x").write_bytes(NOT_RUNS[name])
    with pytest.raises(BadInput, match="is not JSON, or was cut short"):
        Run.load(tmp_path / "x")


def test_a_page_of_several_runs_is_not_one_of_them(tmp_path: Path) -> None:
    (tmp_path / "two.html").write_text(page_of_several(two()))
    with pytest.raises(BadInput, match="a page that carries 2 runs: save one from it"):
        Run.load(tmp_path / "two.html")


def test_what_unpacks_to_too_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("run", "schema"):
        monkeypatch.setattr(f"stripectl.results.{module}.MAX_RUN_BYTES", 1000)
    (tmp_path / "bomb.json.gz").write_bytes(gzip.compress(b" " * 10**5))
    with pytest.raises(BadInput, match="unpacks to more than"):
        Run.load(tmp_path / "bomb.json.gz")


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.name.partition(".")[0])
def test_the_examples_are_runs_that_were_made_by_a_command(path: Path) -> None:
    run = Run.load(path)
    assert run.command.startswith("stripectl ")
    assert bool(run.measurements) == (path.name != "empty.json.gz")
