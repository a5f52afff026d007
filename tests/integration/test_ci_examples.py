"""The examples for CI and clusters, as far as they run without them: their steps in a shell, pinned CPU processes in
place of TPUs, and a launcher that sets what SLURM's does."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from stripectl.compile.toolchain import TOOLCHAINS
from stripectl.results.environment import cores
from stripectl.results.run import Run
from stripectl.workers.hosts import free_address
from tests.support.command import EXAMPLES, SMALL

CLAIMS = "claims:\n  - max_rel_error < 1e-4\n  - striped >= 0.01 x ring\n"
SRUN = """#!/usr/bin/env bash
# What srun does on one machine: so many tasks of a command, each told which it is, on a core of its own.
while [[ $1 == --* ]]; do shift; done
export SLURM_JOB_ID={job} SLURM_STEP_NODELIST=localhost SLURM_NTASKS=2 SLURM_STEP_NUM_NODES=2
for task in 1 0; do
  SLURM_PROCID=$task SLURM_LOCALID=0 taskset -c {cores} "$@" > task$task.out 2> task$task.err & tasks+=($!)
done
code=0; for task in "${{tasks[@]}}"; do wait $task || code=$?; done; exit $code
"""

two_cores = pytest.mark.skipif(len(cores()) < 2, reason="a ring of pinned processes needs two cores")


@pytest.fixture
def shell(tmp_path: Path):
    """Runs a script in a folder of its own, with this stripectl, small shapes, and nothing of a cluster around it."""
    command = tmp_path / "stripectl"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m stripectl "$@"\n')
    command.chmod(0o755)
    around = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "GITHUB_"))}
    around |= {"STRIPECTL": str(command), "SEQLEN": "2k", "TARGET": "cpu:2", "MORE": SMALL}
    around |= {"PATH": f"{tmp_path}:{around['PATH']}"}

    def run(script: str, **variables: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            ["bash", "-e", "-o", "pipefail", "-c", script],
            cwd=tmp_path,
            env=around | variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )

    return run


def steps(job: str) -> dict[str, str]:
    workflow = yaml.safe_load((EXAMPLES / "github-actions.yaml").read_text())
    return {step["name"]: step["run"] for step in workflow["jobs"][job]["steps"] if "run" in step}


@pytest.mark.hosts
@two_cores
def test_times_are_measured_compared_and_claimed(shell, tmp_path: Path) -> None:
    done, summary = steps("times"), tmp_path / "summary.md"
    (tmp_path / "claims.yaml").write_text(CLAIMS)
    compare = next(script for name, script in done.items() if name.startswith("compare"))
    for _ in range(2):
        measured = shell(done["measure"])
        assert measured.returncode == 0, measured.stderr
        compared = shell(compare, GITHUB_STEP_SUMMARY=str(summary))
        assert compared.returncode in (0, 1) and "error" not in compared.stderr, compared.stderr
        claimed = shell(done["claims"])
        assert claimed.returncode == 0, claimed.stdout + claimed.stderr
        assert shell(done["keep the run of main"]).returncode == 0
        assert shell("mv run before-$RANDOM").returncode == 0
    for made in ("compare.xml", "times.json", "claims.xml", "base/run.json", "base/report.html"):
        assert (tmp_path / made).stat().st_size
    assert "| verdict |" in summary.read_text()


@pytest.mark.compilers
@pytest.mark.skipif(bool(TOOLCHAINS["tpu"].missing), reason="libtpu is not installed")
def test_a_synchronous_permute_fails_on_a_plain_runner(shell, tmp_path: Path) -> None:
    done = steps("schedule")
    compile = next(script for name, script in done.items() if name.startswith("compile"))
    (tmp_path / "xla-flags.txt").write_text("--xla-flag xla_enable_async_collective_permute=false\n")
    made = shell(compile)
    assert made.returncode == 0, made.stderr
    gated = shell(done["gate"])
    assert gated.returncode == 1, gated.stdout + gated.stderr
    assert "synchronous collective-permutes" in gated.stdout and "REGRESSED" in gated.stdout
    assert shell(done["gate"].replace("branch", "base")).returncode == 0


@pytest.mark.hosts
@two_cores
def test_tasks_of_slurm_find_each_other(shell, tmp_path: Path) -> None:
    srun = tmp_path / "srun"
    srun.write_text(SRUN.format(job=os.getpid(), cores="$task"))
    srun.chmod(0o755)
    done = shell((EXAMPLES / "slurm.sh").read_text(), RUN=str(tmp_path / "run"))
    said = {task: (tmp_path / f"task{task}.err").read_text() for task in (0, 1)}
    assert done.returncode == 0, said
    run = Run.load(tmp_path / "run")
    assert len(run.environment["hosts"]) == 2
    assert [m.status for m in run.measurements] == ["ok"] * 3
    assert said[1].startswith("host 1 of 2 done: recommended ring/")


@pytest.mark.hosts
@two_cores
def test_pods_of_a_jobset_run_one_bench(shell, tmp_path: Path) -> None:
    job = yaml.safe_load((EXAMPLES / "jobset.yaml").read_text())["spec"]["replicatedJobs"][0]["template"]["spec"]
    [container] = job["template"]["spec"]["containers"]
    assert job["parallelism"] == job["completions"] == 4 and job["completionMode"] == "Indexed"
    (tmp_path / "pod.sh").write_text(container["args"][0])
    names = {each["name"] for each in container["env"]}
    assert names == {"STRIPECTL_TOKEN", "TARGET", "SEQLEN", "RUN"}
    place = f"--coordinator {free_address('127.0.0.1')} --num-processes 2 --process-id"
    pods = 'taskset -c 1 bash -e pod.sh & MORE="$MORE0" taskset -c 0 bash -e pod.sh; wait $!'
    done = shell(pods, RUN="run", MORE=f"{SMALL} {place} 1", MORE0=f"{SMALL} {place} 0")
    assert done.returncode == 0, done.stderr
    assert len(Run.load(tmp_path / "run").environment["hosts"]) == 2
