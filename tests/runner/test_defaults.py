"""Every command, suites, the library and training find the same parts that a plan omits."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from stripectl import sequence_parallel_attention
from stripectl.core.plan import Plan, parse_plan
from stripectl.costs.defaults import with_defaults
from stripectl.hardware.target import parse_target
from stripectl.measure.local_target import LocalTarget
from stripectl.runner.cases import bench_cases
from stripectl.runner.options import RequestOptions
from stripectl.runner.parse import parse_request, parse_trace
from stripectl.runner.request import Request
from stripectl.runner.tuning.candidates import TileSearch, backward_cases, forward_cases
from stripectl.runner.tuning.search import tile_searches
from stripectl.training import attention
from stripectl.training.step import make_training
from tests.support.command import stripectl

TARGETS = ("v5p:2x2x1", "h100:4", "cpu:4")
TEXTS = ("ring", "ring/contiguous", "ulysses@ulysses=4", "usp/striped", "ring/zigzag/xla", "lasp", "ring/zigzag@ring=4")
Route = Callable[[str, str], Plan]


def options(text: str, target: str, **named: Any) -> RequestOptions:
    """64k tokens of the model 1b, which is linear for LASP."""
    given = {"seqlen": "64k", "model": "1b", "pass_": "forward-backward", "target": target, "method": "simulated"}
    linear = {"attention": "linear", "decay": "per-head"} if text == "lasp" else {}
    return RequestOptions(**{**given, **linear, **named})


def place_of(target: str) -> LocalTarget:
    return LocalTarget(parse_target(target))


def plan_of_bench(request: Request, target: str) -> Plan:
    place = place_of(target)
    (case,) = bench_cases(request.resolve_for(place), place)
    assert case.is_ready, case.reason
    return case.plan


def with_plan_option(text: str, target: str) -> Plan:
    return plan_of_bench(parse_request(options(text, target, plan=text)), target)


def with_separate_options(text: str, target: str) -> Plan:
    named = parse_plan(text)
    mesh = {"mesh": dict(named.mesh)} if named.mesh else {}
    layout = named.layout or with_plan_option(text, target).layout  # without a layout, a grid has all
    parts = {"scheme": named.scheme, "layout": layout, "kernel": named.kernel or None, **mesh}
    return plan_of_bench(parse_request(options(text, target, **parts)), target)


def in_a_suite(text: str, target: str) -> Plan:
    own = {"attention": "linear", "decay": "per-head"} if text == "lasp" else {}
    words = {"plan": text, "target": target, "seqlen": "64k", "model": "1b", "pass": "forward-backward", **own}
    Path("suite.yaml").write_text(json.dumps({**words, "method": "simulated"}))
    listed = stripectl("bench", "suite.yaml", "--dry-run", "--quiet")
    assert listed.returncode == 0, listed.stderr
    return parse_plan(listed.stdout.splitlines()[1].split()[1])


def in_python(text: str, target: str) -> Plan:
    """With values in place of texts."""
    return plan_of_bench(parse_request(options(text, target, plan=parse_plan(text), seqlen=2**16)), target)


def in_a_trace(text: str, target: str) -> Plan:
    asked = parse_trace(options(text, target, method="auto", plan=text))
    return plan_of_bench(replace(asked, method="simulated"), target)


def in_a_tile_search(text: str, target: str) -> Plan:
    """With the tiles with which the search begins."""
    place, tuning = place_of(target), TileSearch.of(options(text, target, plan=text), "race")
    tuning = replace(tuning, request=tuning.request.resolve_for(place))
    ((asked, _),) = tile_searches(tuning.request, place)
    tile = forward_cases(tuning, asked, place)[0].plan.tiles["forward"]
    own = backward_cases(tuning, asked, place, tile)[0].plan.tiles["backward"]
    return replace(asked.plan, tile=tile, backward=None if own == tile else own)


ROUTES = (with_plan_option, with_separate_options, in_a_suite, in_python, in_a_trace, in_a_tile_search)


@pytest.mark.parametrize("route", ROUTES, ids=lambda each: each.__name__)
def test_every_command_finds_the_same_plan(route: Route, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for target in TARGETS:
        place = place_of(target)
        for text in TEXTS:
            asked = parse_request(options(text, target, plan=text)).resolve_for(place)
            plan = with_defaults(parse_plan(text), asked.workloads[0], place.target.hardware, 4)
            assert plan.layout and plan.kernel and plan.mesh and plan.tile
            assert route(text, target) == plan, (text, target)


def test_the_library_and_training_find_the_plan_of_a_bench(monkeypatch: pytest.MonkeyPatch) -> None:
    """On CPU devices, where nothing was timed; the library insists on a layout."""
    found, devices = list[Plan](), jax.devices()[:4]
    monkeypatch.setattr(attention, "on_mesh", lambda plan, *_: found.append(plan) or (lambda q, *_: q))
    mesh, q = jax.make_mesh((4,), ("ring",), devices=devices), jnp.zeros((1, 65536, 16, 128), jnp.float32)
    jax.eval_shape(lambda q: sequence_parallel_attention(q, q, q, "ring/zigzag", mesh), q)
    assert found == [with_plan_option("ring/zigzag", "cpu:4")]
    training = make_training("1b", "ring", seq_len=65536, devices=devices, dtype="float32")
    step = options("ring", "cpu:4", plan="ring", pass_="step", dtype="float32")
    assert training.plan == plan_of_bench(parse_request(step), "cpu:4")
