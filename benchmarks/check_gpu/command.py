"""A command of stripectl, run in a process of its own."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def command(*arguments: str) -> Any:
    """The JSON that a command of stripectl prints.

    Raises:
        RuntimeError: it failed; why plans of its run failed, or its last line of stderr.
    """
    with tempfile.TemporaryDirectory() as folder:
        whole = [sys.executable, "-m", "stripectl", *arguments, "--json", "--output", f"{folder}/run"]
        done = subprocess.run(whole, capture_output=True, text=True, cwd=ROOT)
    if not done.returncode:
        return json.loads(done.stdout)
    run = json.loads(done.stdout) if done.stdout.startswith("{") else {"measurements": []}
    reasons = [f"{each['plan']}: {each['reason']}" for each in run["measurements"] if each["reason"]]
    raise RuntimeError("; ".join(reasons) or (done.stderr.strip().splitlines() or ["it said nothing"])[-1])
