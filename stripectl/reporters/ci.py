"""Files for CI systems: verdicts as JUnit XML, a job's summary on GitHub, and times by name for services that chart
them over commits.

The names distinguish the measurements of a run and are equal in all runs, so that a chart continues.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from xml.etree import ElementTree as xml

from stripectl.results.labels import plan_label, workload_label
from stripectl.results.measurement import Measurement
from stripectl.util.files import utf8
from stripectl.util.output import write_output
from stripectl.util.units import rate

NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # XML 1.0, section 2.2
SUMMARY = "GITHUB_STEP_SUMMARY"  # names the file that GitHub Actions shows
MAX_SUMMARY_BYTES = 2**20  # GitHub shows nothing of a longer summary
MORE = b"\nMore did not fit.\n"
MAX_NAME_CHARACTERS = 1000  # characters; Bencher accepts 1024


@dataclass(frozen=True, kw_only=True)
class JUnitCase:
    """One verdict. `name` is unique in its `group` (for example a workload), `message` is one line, `detail` may have
    many, and `time_s` is the time that it is about."""

    name: str
    group: str
    verdict: str
    outcome: Literal["passed", "failed", "skipped"]
    message: str
    detail: str = ""
    time_s: float | None = None


def write_junit(path: Path, suite_name: str, cases: Sequence[JUnitCase], properties: Mapping[str, str]) -> None:
    """Write the cases as one suite of JUnit XML for GitLab, Jenkins and the reporters of GitHub: with the elements and
    attributes of Jenkins' junit-10.xsd (jenkinsci/xunit-plugin), which docs.gitlab.com/ci/testing/unit_test_reports
    names too. GitLab shows only the first of several cases with one name, so repeated names get a number; reporters of
    GitHub show NaN for a missing time, so it is 0.

    Raises:
        BadInput: the file cannot be written.
    """
    outcomes = [case.outcome for case in cases]
    counts = {"tests": len(cases), "failures": outcomes.count("failed"), "errors": 0}
    root = xml.Element("testsuites", _attributes(name=suite_name, **counts))
    whole = {"skipped": outcomes.count("skipped"), "time": f"{sum(case.time_s or 0.0 for case in cases):.3f}"}
    suite = xml.SubElement(root, "testsuite", _attributes(name=suite_name, **counts, **whole))
    held = xml.SubElement(suite, "properties")
    for name, value in properties.items():
        xml.SubElement(held, "property", _attributes(name=name, value=value))
    names = distinct_names((in_xml(case.group), in_xml(case.name)) for case in cases)
    for case, (group, name) in zip(cases, names, strict=True):
        time = f"{case.time_s or 0.0:.6f}"
        _tell(xml.SubElement(suite, "testcase", _attributes(name=name, classname=group, time=time)), case)
    xml.indent(root)
    write_output(path, f'<?xml version="1.0" encoding="UTF-8"?>\n{xml.tostring(root, encoding="unicode")}\n')


def _tell(element: xml.Element, case: JUnitCase) -> None:
    """Write the verdict inside its case: a passed verdict has no element, and is printed as output."""
    told = in_xml("\n".join(filter(None, (f"{case.verdict}: {case.message}", case.detail))))
    if case.outcome == "passed":
        xml.SubElement(element, "system-out").text = told
    else:
        kind = {"failed": "failure", "skipped": "skipped"}[case.outcome]
        xml.SubElement(element, kind, _attributes(type=case.verdict, message=case.message)).text = told


def _attributes(**values: Any) -> dict[str, str]:
    return {name: in_xml(str(value)) for name, value in values.items()}


def in_xml(text: str) -> str:
    """The text with a mark for each character that XML cannot hold, escaped or not."""
    return NOT_XML.sub("\N{REPLACEMENT CHARACTER}", text)


def distinct_names(names: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """(group, name) in order; a name that occurred before in its group gets the first free number."""
    seen = set[tuple[str, str]]()
    for group, name in names:
        own, count = name, 1
        while (group, own) in seen:
            count += 1
            own = f"{name} ({count})"
        seen.add((group, own))
        yield group, own


def step_summary(text: str) -> None:
    """Append markdown to the summary of this step, where this runs in GitHub Actions: as many whole lines as fit in the
    1 MiB of docs.github.com, "Workflow commands", after what the step has written before. Failing to write a summary is
    not an error."""
    if not os.environ.get(SUMMARY):
        return
    try:
        with open(os.environ[SUMMARY], "ab") as file:
            file.write(_fitting(text.encode("utf-8", "replace"), MAX_SUMMARY_BYTES - file.tell()))
    except OSError:
        return


def _fitting(text: bytes, most: int) -> bytes:
    if len(text) <= most:
        return text
    end = text.rfind(b"\n", 0, max(0, most - len(MORE))) + 1
    return text[:end] + MORE if end else b""


def write_github_benchmark(path: Path, measurements: Iterable[Measurement]) -> None:
    """Write times in seconds for the action github.com/benchmark-action/github-action-benchmark, with its tool
    customSmallerIsBetter: a list of {name, unit, value, range, extra} (its README, "Custom benchmarks"; `range` as its
    src/extractRangeInfo.ts reads it, half of the 95 % interval).

    Raises:
        BadInput: the file cannot be written.
    """
    entries = [
        {"name": name, "unit": "s", "value": m.median_s, **_range(m), "extra": _extra(m)}
        for name, m in timed_by_name(measurements).items()
    ]
    write_output(path, json.dumps(entries, indent=1) + "\n")


def _range(m: Measurement) -> dict[str, str]:
    return {"range": f"± {(m.ci95_s[1] - m.ci95_s[0]) / 2:#.3g}"} if m.ci95_s else {}


def _extra(m: Measurement) -> str:
    """The additional text of a tooltip."""
    samples = [f"median of {len(m.samples_s)} samples"] if m.samples_s else []
    return "\n".join([m.method, *samples, rate(m.tokens_per_s, "tokens/s")])


def write_bencher(path: Path, measurements: Iterable[Measurement]) -> None:
    """Write times in nanoseconds as Bencher Metric Format: {name: {latency: {value, lower_value, upper_value}}}, with
    the bounds of the 95 % interval (bencher.dev/docs/reference/bencher-metric-format).

    Raises:
        BadInput: the file cannot be written.
    """
    written = {name: {"latency": _latency(m)} for name, m in timed_by_name(measurements).items()}
    write_output(path, json.dumps(written, indent=1) + "\n")


def _latency(m: Measurement) -> dict[str, float]:
    seconds = {"value": m.median_s, **dict(zip(("lower_value", "upper_value"), m.ci95_s or (), strict=False))}
    return {name: value * 1e9 for name, value in seconds.items() if value is not None}


def timed_by_name(measurements: Iterable[Measurement]) -> dict[str, Measurement]:
    """Index the measurements that have a time by name."""
    found = list({m.key: m for m in measurements if m.status == "ok" and m.median_s}.values())
    names = distinct_names(("", benchmark_name(m)) for m in found)
    return {name: m for (_, name), m in zip(names, found, strict=True)}


def benchmark_name(m: Measurement) -> str:
    """A name for a measurement, in one line."""
    name = utf8(f"{plan_label(m)} | {m.workload.passes} | {workload_label(m.workload)} | {m.target} | {m.method}")
    digest = hashlib.sha256(name.encode()).hexdigest()[:16]
    return name if len(name) <= MAX_NAME_CHARACTERS else f"{name[: MAX_NAME_CHARACTERS - len(digest) - 1]} {digest}"
