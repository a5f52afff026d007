"""The time from a fault to the end of the other hosts, as a table: `make faults`.

A test of a fault measures its time with `timed`. This program runs these tests and prints their times for
docs/how-to/many-hosts.md. No test has a limit for them: they depend on what else the machine does.
"""

import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

FILES = ["tests/integration/test_host_faults.py", "tests/integration/test_ray_faults.py"]
BY_RAY = "2 Ray nodes"
WAYS = ["2 hosts", "4 hosts", BY_RAY]

Record = Callable[[str, object], None]  # pytest's record_property


def hosts(count: int) -> str:
    return f"{count} hosts"


@contextmanager
def timed(record: Record, fault: str, way: str) -> Iterator[None]:
    """Record the time that passes between a fault and the end of this block, by which the others have ended."""
    begun = time.monotonic()
    yield
    record("fault", f"{fault}|{way}|{time.monotonic() - begun:.1f}")


def table(report: Path) -> str:
    """The recorded times of a JUnit report, in Markdown."""
    times: dict[str, dict[str, str]] = {}
    for case in ET.parse(report).iter("testcase"):
        found = [str(each.get("value")) for each in case.iter("property") if each.get("name") == "fault"]
        for fault, way, seconds in (each.split("|") for each in found):
            times.setdefault(fault, {})[way] = f"{float(seconds):.0f} s"
    lines = [["fault", *WAYS], ["---"] * (1 + len(WAYS))]
    lines += [[fault, *(by_way.get(way, "n/a") for way in WAYS)] for fault, by_way in sorted(times.items())]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        command = [sys.executable, "-m", "pytest", "-m", "hosts or ray", *FILES, *sys.argv[1:]]
        command += [f"--junitxml={report}", "-o", "junit_family=xunit1"]  # which has properties of tests
        code = subprocess.run(command, stdout=sys.stderr).returncode
        print(table(report))
    sys.exit(code)
