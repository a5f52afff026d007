"""The documentation shows commands that exist and code that runs, and its links lead to pages that exist."""

import re
import runpy
import shlex
from pathlib import Path

import click
import jax.numpy as jnp
import pytest

from stripectl.analysis.claims import load_claims
from stripectl.analysis.metrics import METRICS
from stripectl.analysis.striped_attention_paper import theoretical_max_speedup
from stripectl.cli import main
from stripectl.cli.app import COMMANDS, group
from stripectl.core.plan import parse_plan
from stripectl.core.scheme import Scheme, schemes
from stripectl.core.workload import Workload
from stripectl.costs.cost_model import COUNTING
from stripectl.simulate.simulation import simulate
from tests.docs.pages import BLOCKS, NOT_RUN, PAGES, ROOT, RUNS, Block, anchors, commands_of, page_name
from tests.support.plans import with_tile

CODE = [block for block in BLOCKS if block.language in ("sh", "python")]
RUNNABLE = [block for block in CODE if block.mark.startswith(RUNS)]
# Commands in running text: `stripectl report RUN --history history`.
INLINE = {
    command
    for path in PAGES
    for command in re.findall(rf"`(stripectl (?:{'|'.join(COMMANDS)})\b[^`]*)`", path.read_text().replace("\n", " "))
}
# Commands of the recorded figures, in indented blocks; a line may continue behind a backslash.
RECORDED = {
    re.split(r"\s{2,}#", line)[0].strip()
    for line in re.findall(
        r"^ {4}(stripectl .*)$", (ROOT / "benchmarks" / "README.md").read_text().replace("\\\n", " "), re.MULTILINE
    )
}
SHOWN = {(line, block.id) for block in CODE if block.language == "sh" for line in commands_of(block)}
LINES = sorted(line for line in INLINE | RECORDED | {line for line, _ in SHOWN} if line.startswith("stripectl "))


def block_in(page: str, start: str) -> Block:
    return next(block for block in BLOCKS if block.page == page and block.text.startswith(start))


@pytest.mark.parametrize("block", CODE, ids=lambda block: block.id)
def test_a_block_of_code_runs_or_says_why_not(block: Block) -> None:
    assert re.fullmatch(rf"{RUNS}( on .+)?|{NOT_RUN}.+", block.mark)


def test_commands_are_only_where_they_are_checked() -> None:
    other = [block for block in BLOCKS if block.language not in ("sh", "python", "text", "yaml")]
    assert not [block.id for block in other if re.search(r"^\s*stripectl ", block.text, re.MULTILINE)]
    assert len(LINES) > 50 and len(RUNNABLE) > 20


@pytest.mark.parametrize("line", LINES)
def test_a_command_line_parses(line: str) -> None:
    _, name, *rest = shlex.split(line)
    command = group.get_command(click.Context(group), name)
    assert command
    try:
        command.make_context(name, rest)
    except click.MissingParameter:
        assert not rest and line in INLINE, "running text may name a command alone"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the examples in it, where nothing of the environment reaches a command."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    for name in ("GITHUB_STEP_SUMMARY", "STRIPECTL_HISTORY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.chdir(tmp_path)
    return tmp_path


COMMANDS_OF_PAGES = [
    pytest.param(block, marks=() if block.page == "README.md" else pytest.mark.docs, id=block.id)
    for block in RUNNABLE
    if block.language == "sh"
]


@pytest.mark.parametrize("block", COMMANDS_OF_PAGES)
def test_a_block_of_commands_runs(block: Block, folder: Path, capsys: pytest.CaptureFixture) -> None:
    for line in commands_of(block):
        program, *words = shlex.split(line)
        assert program == "stripectl", line
        with pytest.raises(SystemExit) as done:
            main(words)
        assert not done.value.code, f"{line}: {capsys.readouterr().err}"


@pytest.mark.docs
@pytest.mark.parametrize("page", sorted({block.page for block in RUNNABLE if block.language == "python"}))
def test_the_python_of_a_page_runs_from_top_to_bottom(page: str, folder: Path) -> None:
    names: dict = {}
    for block in RUNNABLE:
        if block.page == page and block.language == "python":
            exec(compile(block.text, block.id, "exec"), names)
    if "gradients" in names:
        assert len(names["gradients"]) == 3 and all(jnp.all(jnp.isfinite(each)) for each in names["gradients"])
    if "times" in names:
        assert names["times"][names["fastest"]] == min(names["times"].values())


def test_the_readme_has_at_most_150_lines() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


def test_the_scheme_of_the_readme_is_a_scheme() -> None:
    names: dict = {}
    exec(block_in("README.md", "def forward").text, names)
    work = Workload(seq_len=2**14, heads=8, kv_heads=2, head_dim=64)
    plan = with_tile(parse_plan("all_gather/striped/xla@ring=8"), work, "cpu")
    known = simulate(work, plan, COUNTING)
    own = Scheme("readme", paper="", axes=("ring",), forward=names["forward"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(schemes._cache, "all_gather", own)
        found = simulate(work, plan, COUNTING)
    assert found.sent == known.sent == {"all-gather": 7 * 2 * 2**11 * 2 * 64 * 2}
    assert len(found.rounds) == 8


def test_the_figure_of_the_bound_is_the_functions() -> None:
    shown = re.search(r"theoretical_max_speedup\((.*)\)  # ([\d.]+)", (ROOT / "docs/how-to/notebook.md").read_text())
    assert shown
    given = dict(part.split("=") for part in shown[1].split(", "))
    found = theoretical_max_speedup(
        model=given["model"].strip('"'), seq_len=int(given["seq_len"]), ring=int(given["ring"])
    )
    assert f"{found:.2f}" == shown[2]


def test_the_verdicts_of_the_page_on_claims_are_the_commands(folder: Path, capsys: pytest.CaptureFixture) -> None:
    page = "docs/how-to/check-claims.md"
    (line,) = commands_of(block_in(page, "stripectl check"))
    with pytest.raises(SystemExit):
        main(shlex.split(line)[1:])
    printed = [" ".join(row.split()) for row in capsys.readouterr().out.splitlines()]
    rows = [" ".join(row.split()) for row in block_in(page, " #  verdict").text.splitlines()]
    assert len(rows) == 5 and rows == printed[:5]


def test_the_claims_of_the_page_are_claims_and_it_names_every_metric(tmp_path: Path) -> None:
    page = "docs/how-to/check-claims.md"
    (tmp_path / "claims.yaml").write_text(block_in(page, "about:").text)
    assert len(load_claims(tmp_path / "claims.yaml").claims) == 4
    assert all(f"`{name}`" in (ROOT / page).read_text() for name in METRICS if name != "fits")


@pytest.mark.parametrize("path", PAGES, ids=page_name)
def test_links_lead_to_files_and_headings(path: Path) -> None:
    text = re.sub(r"`[^`\n]*`", "", re.sub(r"^(`{3,}).*?^\1$", "", path.read_text(), flags=re.DOTALL | re.MULTILINE))
    links = re.findall(r"\]\(([^)\s]+)\)", text)
    for link in links:
        target, _, anchor = link.partition("#")
        if target.startswith("http"):
            continue
        file = (path.parent / target).resolve() if target else path
        assert file.exists(), link
        assert not anchor or file.suffix != ".md" or anchor in anchors(file), link
    assert links or path.name in ("changelog.md", "glossary.md", "python-interface.md") or "docs" in path.parts


def test_the_example_of_bounds_runs(capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["bounds.py", "1B", "TPUv4"])
    runpy.run_path(str(ROOT / "examples" / "bounds.py"), run_name="__main__")
    assert len(capsys.readouterr().out.splitlines()) > 5
