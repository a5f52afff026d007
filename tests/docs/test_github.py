"""The files for GitHub, as far as they run without it: the steps of the action in a shell, with a `gh` that records its
arguments; the pins and permissions of the workflows; the forms."""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import click
import pytest
import yaml

from stripectl.cli.app import group
from stripectl.results.run import Run
from tests.docs.pages import ROOT
from tests.support.golden import PROFILES, xspace

GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
FORMS = sorted(path for path in (GITHUB / "ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml")
ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
BENCH = "bench --target v5e:2x2 --seqlen 4k --pass forward --layout striped --method simulated --quiet"

PYTHON = """#!/bin/sh
# What `python3 -I -m venv FOLDER` makes, with a pip that records what it installs; anything else is the real Python.
if [ "$1" != -I ]; then echo "python3 $1 takes modules from the checkout" >&2; exit 1; fi
if [ "$3" != venv ]; then exec "{python}" "$@"; fi
mkdir -p "$4/bin"
printf '#!/bin/sh\\necho "$@" >> "{folder}/pip.txt"\\n' > "$4/bin/pip"
printf '#!/bin/sh\\nexec "{python}" -m stripectl "$@"\\n' > "$4/bin/stripectl"
chmod +x "$4/bin/pip" "$4/bin/stripectl"
"""
GH = """#!/bin/sh
# One comment at most is on the pull request; a token without permission is refused.
[ "$GH_TOKEN" = allowed ] || {{ echo "HTTP 403" >&2; exit 1; }}
echo "$@" >> "{folder}/gh.txt"
case "$*" in
  "api user "*) [ -n "$GH_LOGIN" ] && echo "$GH_LOGIN" || exit 1 ;;
  *--jq*) [ ! -e "{folder}/comment.md" ] || [ "$me" != "github-actions[bot]" ] || echo 42 ;;
  *) for each; do case "$each" in body=@*) cp "${{each#body=@}}" "{folder}/comment.md" ;; esac; done ;;
esac
"""


class Done(NamedTuple):
    """What the steps of the action did."""

    code: int
    out: str
    outputs: dict[str, str]
    artifact: dict[str, str]


def value(text: Any, context: dict[str, str]) -> str:
    """A text of a step with its expressions replaced by what they are."""
    return re.sub(r"\$\{\{ *([\w.-]+) *\}\}", lambda found: context.get(found[1], ""), str(text))


def holds(condition: str, context: dict[str, str], failed: bool) -> bool:
    """Whether a step runs, by its `if`."""
    always = "always()" in condition
    text = re.sub(r"\b(inputs|steps|github)\.[\w.-]+", lambda found: repr(context.get(found[0], "")), condition)
    text = text.replace("always()", "True").replace("&&", "and")
    known = {"startsWith": lambda text, start: text.startswith(start)}
    return (always or not failed) and bool(eval(text, known))


@pytest.fixture
def action(tmp_path: Path) -> Iterator[Callable[..., Done]]:
    """Runs the steps of the action in a folder, as GitHub does, on an event and with inputs."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for name, text in (("python3", PYTHON), ("gh", GH)):
        (programs / name).write_text(text.format(python=sys.executable, folder=tmp_path))
        (programs / name).chmod(0o755)
    path = [str(programs), os.environ["PATH"]]

    def run(event: str = "pull_request", **given: str) -> Done:
        inputs = {name: str(each.get("default", "")) for name, each in ACTION["inputs"].items()}
        inputs |= {name.replace("_", "-"): each for name, each in given.items()}
        context = {f"inputs.{name}": each for name, each in inputs.items()}
        context |= {"github.action_path": str(ROOT), "github.event_name": event, "github.token": "allowed"}
        context |= {"github.event.pull_request.number": "7"}
        context["inputs.token"] = value(inputs["token"], context)
        failed, said, artifact = 0, "", dict[str, str]()
        for step in ACTION["runs"]["steps"]:
            if not holds(step.get("if", "True"), context, bool(failed)):
                continue
            if "uses" in step:
                artifact = {name: value(each, context) for name, each in step["with"].items()}
                continue
            files = {name: tmp_path / name for name in ("GITHUB_OUTPUT", "GITHUB_PATH")}
            for file in files.values():
                file.write_text("")
            env = {name: each for name, each in os.environ.items() if not name.startswith(("GITHUB_", "STRIPECTL_"))}
            env |= {"PATH": ":".join(path), "PYTHONPATH": str(ROOT), "RUNNER_TEMP": str(tmp_path)}
            env |= {name: str(file) for name, file in files.items()}
            env |= {"GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"), "GITHUB_REPOSITORY": "o/r"}
            env |= {"GITHUB_WORKFLOW": "w", "GITHUB_JOB": "j"}
            env |= {name: value(each, context) for name, each in step.get("env", {}).items()}
            shell = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
            done = subprocess.run(
                shell, cwd=tmp_path, env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL
            )
            failed, said = failed or done.returncode, said + done.stdout + done.stderr
            path[:0] = files["GITHUB_PATH"].read_text().split()
            for name, _, each in re.findall(
                r"(\S+)<<(end-\w{32})\n(.*?)\n\2\n", files["GITHUB_OUTPUT"].read_text(), re.S
            ):
                context[f"steps.{step['id']}.outputs.{name}"] = each
        outputs = {name: value(each["value"], context) for name, each in ACTION["outputs"].items()}
        return Done(failed, said, outputs, artifact)

    yield run


@pytest.mark.hosts
def test_the_action_benches_compares_and_comments(action: Callable[..., Done], tmp_path: Path) -> None:
    made = action(run=BENCH, extras="tpu")
    assert made.code == 0, made.out
    assert (tmp_path / "pip.txt").read_text() == f"install --quiet {ROOT}[tpu]\n"
    assert made.outputs == {"exit-code": "0", "run": "run", "markdown": str(tmp_path / "stripectl-bench.md")}
    assert made.artifact["name"] == "stripectl-bench-j"
    assert made.artifact["path"].split() == ["run", made.outputs["markdown"]]
    assert (tmp_path / "run" / "report.html").stat().st_size > 10_000
    comment = (tmp_path / "comment.md").read_text()
    assert comment.startswith("<!-- stripectl bench w j -->\n") and "ring/striped" in comment
    assert comment.partition("\n")[2] == (tmp_path / "summary.md").read_text()
    again = action(run=f"stripectl {BENCH} -o 'other run'", install="false")
    assert again.code == 0 and again.outputs["run"] == "other run", again.out
    assert (tmp_path / "other run" / "run.json").exists()
    asked = [line for line in (tmp_path / "gh.txt").read_text().splitlines() if "api user" not in line]
    assert ["POST" in asked[1], "PATCH" in asked[3], len(asked)] == [True, True, 4]
    assert "repos/o/r/issues/7/comments" in asked[1] and "repos/o/r/issues/comments/42" in asked[3]
    compared = action(run="compare run 'other run'", install="false")
    assert compared.code == 0 and "UNCHANGED" in (tmp_path / "comment.md").read_text(), compared.out


def test_a_command_that_fails_fails_the_action_after_its_comment(action: Callable[..., Done], tmp_path: Path) -> None:
    base = ROOT / "examples" / "runs" / "cpu.json.gz"
    run = Run.load(base)
    replace(run, measurements=run.measurements[1:]).save(tmp_path / "new")
    done = action(run=f"compare {base} new", version="0.1.0")
    assert (tmp_path / "pip.txt").read_text() == "install --quiet stripectl==0.1.0\n"
    assert done.code == 1 and done.outputs["exit-code"] == "1", done.out
    assert "MISSING" in (tmp_path / "comment.md").read_text()
    assert action(run="bench --scheme nothing", install="false").code == 2


def test_a_comment_of_somebody_else_is_not_edited(action: Callable[..., Done], tmp_path: Path, monkeypatch) -> None:
    """A token that may ask who it is edits its own comments; here the comment is by the token of a job."""
    base = ROOT / "examples" / "runs" / "tpu.json.gz"
    for login in ("", "somebody"):
        monkeypatch.setenv("GH_LOGIN", login)
        assert action(run=f"compare {base} {base} --compare schedule", install=str(not login).lower()).code == 0
    methods = re.findall(r"--method (\w+)", (tmp_path / "gh.txt").read_text())
    assert methods == ["POST", "POST"]


@pytest.mark.hosts
def test_the_action_reads_a_profile(action: Callable[..., Done], tmp_path: Path) -> None:
    """It writes no run, so the action has no folder to upload."""
    (tmp_path / "one.xplane.pb").write_bytes(xspace((PROFILES / "cpu.txtpb").read_text()))
    done = action(run="trace --read one.xplane.pb")
    assert done.code == 0, done.out
    assert done.outputs["run"] == "" and "overlap" in done.out


def test_without_permission_to_comment_the_action_warns(action: Callable[..., Done], tmp_path: Path) -> None:
    base = ROOT / "examples" / "runs" / "tpu.json.gz"
    done = action(run=f"compare {base} {base} --compare schedule", token="refused")
    assert done.code == 0 and "::warning::stripectl cannot comment" in done.out
    assert not (tmp_path / "comment.md").exists()


@pytest.mark.hosts
def test_on_a_push_the_action_does_not_comment_and_words_are_no_shell(
    action: Callable[..., Done], tmp_path: Path
) -> None:
    done = action("push", run=f"{BENCH} --output '$(touch broken)'")
    assert done.code == 0 and not (tmp_path / "gh.txt").exists()
    assert not (tmp_path / "broken").exists() and (tmp_path / "$(touch broken)" / "run.json").exists()


def jobs(path: Path) -> dict[str, Any]:
    return yaml.safe_load(path.read_text())["jobs"]


@pytest.mark.parametrize("path", [*WORKFLOWS, ROOT / "action.yml"], ids=lambda path: path.name)
def test_actions_are_pinned(path: Path) -> None:
    for line in re.findall(r"^[ -]*uses: (.*)$", path.read_text(), re.MULTILINE):
        name = line.split(" ")[0]
        assert name == "./" or re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line), line


@pytest.mark.parametrize("path", [*WORKFLOWS, ROOT / "action.yml"], ids=lambda path: path.name)
def test_no_expression_is_in_a_script(path: Path) -> None:
    content = yaml.safe_load(path.read_text())
    steps = content["runs"]["steps"] if "runs" in content else [s for job in jobs(path).values() for s in job["steps"]]
    assert not [step["run"] for step in steps if "${{" in step.get("run", "")]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_have_few_permissions_limits_and_commands_that_exist(path: Path) -> None:
    assert yaml.safe_load(path.read_text())["permissions"] == {"contents": "read"}
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for job in jobs(path).values():
        assert job["timeout-minutes"] <= 360
        for script in (step["run"] for step in job["steps"] if "run" in step):
            asked = [word for words in re.findall(r"^make (.*)", script, re.MULTILINE) for word in words.split()]
            assert {word for word in asked if "=" not in word} <= targets
            assert all(os.access(ROOT / name, os.X_OK) for name in re.findall(r"\.ci/\w+", script))


def test_the_release_checks_its_tag(tmp_path: Path) -> None:
    [script] = [
        step["run"]
        for step in jobs(GITHUB / "workflows/release.yml")["build"]["steps"]
        if "tag" in step.get("name", "")
    ]
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "1.2.3"\n')

    def code(tag: str) -> int:
        env = os.environ | {"GITHUB_REF_NAME": tag}
        return subprocess.run(["bash", "-e", "-c", script], cwd=tmp_path, env=env, capture_output=True).returncode

    (tmp_path / "CHANGELOG.md").write_text("## [1.2.3] - 2026-12-01\n")
    assert [code("v1.2.3"), code("v1.2.4")] == [0, 1]
    (tmp_path / "CHANGELOG.md").write_text("## [Unreleased]\n")
    assert code("v1.2.3") == 1


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.name)
def test_an_issue_form_is_one(path: Path) -> None:
    form = yaml.safe_load(path.read_text())
    assert form["name"] and form["description"]
    assert all(part["type"] in ("input", "textarea") and part["attributes"]["label"] for part in form["body"])
    assert len({part["id"] for part in form["body"]}) == len(form["body"])
    assert any(part.get("validations", {}).get("required") for part in form["body"])


def test_the_forms_ask_for_what_answers_most_questions() -> None:
    for name in ("bug", "prediction"):
        text = (GITHUB / "ISSUE_TEMPLATE" / f"{name}.yml").read_text()
        assert "doctor --json" in text and "run.json" in text
    assert {path.stem for path in FORMS} == {"bug", "hardware", "prediction", "scheme"}


def test_the_citation_and_the_hooks_are_whole() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= citation.keys() and citation["license"] == "Apache-2.0"
    [local] = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert local["repo"] == "local" and {hook["id"] for hook in local["hooks"]} == {
        "ruff-format",
        "ruff-check",
        "pyright",
        "prose",
    }
    lint = re.search(r"^lint:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert lint and all(hook["entry"].split()[0].rpartition("/")[2] in lint[1] for hook in local["hooks"])


def test_the_example_workflow_of_the_guide_is_one() -> None:
    text = (ROOT / "docs/how-to/gate-a-pull-request.md").read_text()
    [workflow] = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)]
    steps = [step for job in workflow["jobs"].values() for step in job["steps"] if "stripectl" in step["uses"]]
    assert steps and all(step["with"].keys() <= ACTION["inputs"].keys() for step in steps)
    for name, *words in (shlex.split(step["with"]["run"]) for step in steps):
        command = group.get_command(click.Context(group), name)
        assert command and command.make_context(name, words)
    assert json.dumps(workflow["permissions"]) == '{"contents": "read", "pull-requests": "write"}'
