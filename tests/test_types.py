"""Types of the package: typed records between its parts, text of plans only where it comes in, and one file per
output, consumer of verdicts and backend."""

import ast
import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

import stripectl
from stripectl.analysis.comparison import Comparison
from stripectl.results.backend import Backend, Event, Final, finals
from stripectl.results.case import Case
from stripectl.results.cost_source import FROM_DATASHEET
from stripectl.results.measurement import Measurement
from stripectl.results.recommendation import Recommendation
from stripectl.results.run import Run
from stripectl.runner.bench import run_request
from stripectl.runner.options import RequestOptions
from stripectl.runner.parse import parse_request
from stripectl.statistics.verdict import Verdict
from stripectl.util.progress import quiet
from tests.support.factories import run_of
from tests.support.fake_backend import FakeBackends

PACKAGE = Path(stripectl.__file__).parent
UNTYPED = re.compile(r"\b(?:dict|Mapping)\[str, Any\]")
MAX_UNTYPED_LINES = 47  # raw JSON and YAML at the edge, and parameters of click
# Text of plans comes in by the grammar, the command line, claims, the Python interface, messages to workers, and data.
READS_PLANS = {
    "core/plan.py",
    "runner/parse.py",
    "analysis/plan_selector.py",
    "training/order.py",
    "training/step.py",
    "measure/session.py",
    "compile/session.py",
    "analysis/accuracy/compiled_steps.py",
    "analysis/accuracy/framework_steps.py",
    "analysis/accuracy/memory.py",
}


def test_mappings_of_anything_are_few() -> None:
    lines = [line for path in PACKAGE.rglob("*.py") for line in path.read_text().splitlines() if UNTYPED.search(line)]
    assert len(lines) <= MAX_UNTYPED_LINES


def test_plans_are_parsed_only_where_text_comes_in() -> None:
    found = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "parse_plan"
    }
    assert found == READS_PLANS


def test_the_package_says_that_it_has_types() -> None:
    assert (PACKAGE / "py.typed").exists()


@dataclass(frozen=True)
class Halved:
    """A backend in one file: every plan takes half a second per device."""

    def prepare(self, cases: Sequence[Case]) -> None:
        """It is always ready."""

    def run(self, cases: Sequence[Case], budget_s: float = math.inf) -> Iterator[Event]:
        for case in cases:
            yield Final(replace(Measurement.of(case), median_s=0.5 * case.devices, cost_source=FROM_DATASHEET))


class HalvedBackends(FakeBackends):
    def compiled(self, place: object) -> Backend:
        return Halved()


def as_csv(found: Recommendation) -> str:
    """An output in one file: it arranges what is said, and words nothing."""
    return "\n".join(f"{each.name},{each.text}" for each in found.statements)


def counted(compared: Sequence[Comparison]) -> Counter[Verdict]:
    """A consumer of verdicts in one file."""
    return Counter(each.verdict for each in compared)


@pytest.fixture
def run_of_backend() -> Run:
    options = RequestOptions(seqlen="4k", heads=4, head_dim=64, target="v5e:2x2", method="compiled", pass_="forward")
    request = parse_request(options)
    found = finals(run_request(request, HalvedBackends(request, quiet), quiet))
    return run_of(*found, devices=[], warnings=[])


def test_a_backend_an_output_and_a_consumer_of_verdicts_are_one_file_each(run_of_backend: Run) -> None:
    timed = {m.devices: m.median_s for m in run_of_backend.measurements if m.status == "ok"}
    assert timed == {4: 2.0, 1: 0.5}
    from stripectl.analysis.recommendation import recommend

    found = recommend(run_of_backend)
    assert found is not None
    lines = dict(line.split(",", 1) for line in as_csv(found).splitlines())
    assert lines["plan"] == str(found.plan) and lines["time"].startswith("2.00 s compiled")
    again = Run.from_json(json.loads(json.dumps(run_of_backend.to_json())), "again")
    verdicts = counted(stripectl.compare(run_of_backend, again, max_regression=0.0))
    assert verdicts == {Verdict.UNCHANGED: len(timed) + 2}
