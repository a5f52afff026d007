"""Writes the runs in examples/runs in the newest schema: python tools/example_runs.py

Figures and recommendations stay as they are. A plan that this version refuses as well gets its reason of this version;
other reasons of an older schema are of kind `unknown`. `command` in a run is the command that measures it anew.
"""

import gzip
import json
from dataclasses import replace
from pathlib import Path

from stripectl.core.reason import ReasonKind
from stripectl.results.fit import check_memory
from stripectl.results.measurement import Measurement
from stripectl.results.run import SCHEMA, VERSION, Run
from stripectl.runner.cases import why_refused

RUNS = Path(__file__).parents[1] / "examples" / "runs"


def with_kind(m: Measurement) -> Measurement:
    """The measurement; if it is refused without a kind, with the reason for which this version refuses it."""
    machine = m.target.machine
    if m.status != "refused" or machine is None or m.reason is None or m.reason.kind != ReasonKind.UNKNOWN:
        return m
    memory = check_memory(replace(m, status="ok", reason=None)).reason
    return replace(m, reason=why_refused(m.plan, m.workload, machine) or memory or m.reason)


def rewrite(path: Path) -> str:
    """Write a run in the newest schema, unless it has it; how many of its reasons have a kind, in words."""
    held = gzip.decompress(path.read_bytes())
    content, known = json.loads(held), Run.load(path).measurements
    made = [with_kind(m) for m in known]
    content |= {"schema": f"{SCHEMA}{VERSION}", "measurements": [m.to_json() for m in made]}
    if (text := json.dumps(content, indent=1).encode()) != held:  # Pythons and zlibs pack the same text differently
        path.write_bytes(gzip.compress(text, mtime=0))
    reasons = [m.reason for m in made if m.reason]
    unknown = sum(why.kind == ReasonKind.UNKNOWN for why in reasons)
    return f"{path.name}: {len(reasons)} reasons, {unknown} of them of kind unknown"


if __name__ == "__main__":
    for path in sorted(RUNS.glob("*.json.gz")):
        print(rewrite(path))
