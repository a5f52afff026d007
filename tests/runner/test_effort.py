"""Options of effort that no method of a run uses are named, or refused where the user named a plan."""

from dataclasses import replace
from pathlib import Path

import pytest

from stripectl.errors import BadInput
from stripectl.hardware.target import parse_target
from stripectl.measure.local_target import LocalTarget
from stripectl.runner.effort import USED_BY, bench_methods, unused_effort
from stripectl.runner.options import EFFORT_OPTIONS, RequestOptions
from stripectl.runner.parse import parse_request
from stripectl.runner.request import Request

VALUES = {"time_budget": "1m", "min_samples": 3, "warmup": 2, "compile_timeout": "1m", "cache": False, "refine": 2}
ABSENT = LocalTarget(parse_target("v5p:2x2x1"))
HERE = LocalTarget(parse_target("cpu:2"), 2, 2)


def asked(method: str, named: str, **others: object) -> Request:
    return parse_request(RequestOptions(method=method, **{named: VALUES[named]}, **others))  # type: ignore[arg-type]


def test_every_option_of_effort_has_its_methods() -> None:
    assert {*EFFORT_OPTIONS, "profile"} == {*USED_BY} and {*VALUES} == {*EFFORT_OPTIONS}


@pytest.mark.parametrize("named", EFFORT_OPTIONS)
@pytest.mark.parametrize(("method", "place"), [("simulated", ABSENT), ("compiled", ABSENT), ("measured", HERE)])
def test_an_option_is_used_or_named_or_refused(named: str, method: str, place: LocalTarget) -> None:
    request = asked(method, named)
    used = bool(USED_BY[named] & bench_methods(request, place))
    said = [each.text for each in unused_effort(request, bench_methods(request, place))]
    assert used == (named in USED_BY and method in USED_BY[named]) and len(said) == (not used)
    if said:
        option = "--no-cache" if named == "cache" else f"--{named.replace('_', '-')}"
        assert said[0].startswith(f"{option} has no effect, because no plan of this run is ")
    plan = asked(method, named, plan="ring")
    if used:
        assert not list(unused_effort(plan, bench_methods(plan, place)))
    else:
        with pytest.raises(BadInput, match="has no effect"):
            list(unused_effort(plan, bench_methods(plan, place)))


def test_refine_needs_a_search_that_is_not_only_simulated() -> None:
    for method, used in (("simulated", False), ("compiled", True)):
        request = asked(method, "refine", mesh="auto")
        assert ("search" in bench_methods(request, ABSENT)) == used


def test_a_profile_needs_plans_that_run() -> None:
    request = asked("simulated", "warmup")
    traced = replace(request, sampling=replace(request.sampling, profile_folder=Path("run")))
    (said,) = unused_effort(traced, bench_methods(traced, ABSENT))
    assert said.text == "--warmup and --profile have no effect, because no plan of this run is measured." and said.warns
