"""What the README says is there, is there, and what is there is in the README."""

import re
import runpy
import shlex
from pathlib import Path

import click
import pytest

from stripectl.cli import main
from stripectl.cli.app import COMMANDS, group
from stripectl.core.bounds import theoretical_max_speedup
from stripectl.core.plan import AXES, kernels, layouts, schemes
from stripectl.hardware.profile import hardware_names
from stripectl.util.files import profile_names

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
NAMES = [
    *COMMANDS,
    *schemes.names(),
    *layouts.names(),
    *kernels.names(),
    *hardware_names(),
    *profile_names("models"),
    *AXES,
]
LINES = [line for line in README.splitlines() if re.match(rf"\s*stripectl ({'|'.join(COMMANDS)})\b", line)]


@pytest.mark.parametrize("name", NAMES)
def test_everything_has_its_name_in_the_readme(name: str) -> None:
    assert re.search(rf"`{re.escape(name)}`|stripectl {re.escape(name)}\b", README)


@pytest.mark.parametrize("command", ["bench", "tune-tiles"])
def test_every_option_is_in_the_readme(command: str) -> None:
    for option in group.get_command(None, command).params:  # type: ignore
        if isinstance(option, click.Option):
            check_option(str(option.name))


def check_option(name: str) -> None:
    spelled = {
        "passes": "pass",
        "plans": "plan",
        "meshes": "mesh",
        "as_json": "json",
        "xla_flags": "xla-flag",
        "features": "feature-map",
    }.get(name, name)
    assert f"--{spelled.replace('_', '-')}" in README


def arguments(line: str) -> list[str]:
    """The words of a command line of the README, without what is said about it."""
    return shlex.split(re.split(r"\s{3,}", line.strip())[0])[1:]


@pytest.mark.parametrize("line", LINES)
def test_every_command_line_parses(line: str) -> None:
    name, *rest = arguments(line)
    command = group.get_command(click.Context(group), name)
    assert command
    command.make_context(name, rest)


@pytest.mark.parametrize("line", [line for line in LINES if "--target" in line])
def test_benches_of_a_target_run_on_paper(line: str, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    long = any(said in line for said in ("--seqlen max", "--scheme all --mesh auto"))
    compiles = ["--dry-run"] if long else ["--method", "simulated"]
    on_paper = compiles if re.match(r"\s*stripectl (bench|tune-tiles)", line) else []
    with pytest.raises(SystemExit) as done:
        main([*arguments(line), "--quiet", *on_paper])
    assert not done.value.code, capsys.readouterr().err


def test_the_readme_has_command_lines() -> None:
    assert len(LINES) >= 10


def test_the_readmes_figure_is_the_functions() -> None:
    said = re.search(r"theoretical_max_speedup\((.*)\)  # .*: ([\d.]+)", README)
    assert said
    given = dict(part.split("=") for part in said[1].split(", "))
    found = theoretical_max_speedup(
        model=given["model"].strip('"'), seq_len=int(given["seq_len"]), ring=int(given["ring"])
    )
    assert f"{found:.2f}" == said[2]


def test_links_of_the_readme_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert target.startswith("http") or (ROOT / target).exists(), target


def test_examples_run(capsys, monkeypatch) -> None:
    monkeypatch.setattr("sys.argv", ["bounds.py", "1B", "TPUv4"])
    runpy.run_path(str(ROOT / "examples" / "bounds.py"), run_name="__main__")
    assert len(capsys.readouterr().out.splitlines()) > 5
