"""A part of a plan comes from its text, or from an option, or from the machine; never silently from another place."""

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from stripectl.core.layout import parse_tile
from stripectl.core.mesh import parse_mesh
from stripectl.core.plan import Plan
from stripectl.errors import BadInput
from stripectl.hardware.target import parse_target
from stripectl.measure.local_target import LocalTarget
from stripectl.runner.cases import bench_cases
from stripectl.runner.options import RequestOptions
from stripectl.runner.parse import parse_request
from tests.support.command import Ended, stripectl

TARGET = "v5p:2x2x1"
BASE = {"target": TARGET, "seqlen": "64k", "method": "simulated", "pass_": "forward"}


class Part(NamedTuple):
    """A part of a plan: its option, two values as an option writes them, and the plan's text with the first."""

    name: str
    option: str
    value: str
    other: str
    text: str


PARTS = [
    Part("layout", "layout", "zigzag", "striped", "ring/zigzag@ring=4"),
    Part("kernel", "kernel", "splash", "pallas_tpu", "ring/splash@ring=4"),
    Part("mesh", "mesh", "ring=4", "ring=2,tensor=2", "ring@ring=4"),
    Part("tile", "tile", "512", "1024", "ring@ring=4,tile=512"),
    Part("unroll", "unroll", "1", "2", "ring@ring=4,unroll=1"),
]


def options(plan: str, **named: object) -> RequestOptions:
    return RequestOptions(plan=plan, **{**BASE, **named})  # type: ignore[arg-type]


def plans(asked: RequestOptions) -> list[Plan]:
    """The plans that a bench runs."""
    cases = bench_cases(parse_request(asked), LocalTarget(parse_target(asked.target)))
    assert all(case.is_ready for case in cases), cases[0].reason
    return [case.plan for case in cases]


def as_part(name: str, text: str) -> object:
    return {"mesh": parse_mesh, "tile": parse_tile, "unroll": int}.get(name, str)(text)


@pytest.mark.parametrize(("named", "option"), list(itertools.product(PARTS, PARTS)), ids=lambda each: each.name)
def test_every_option_beside_every_part_of_a_plan_is_honoured_or_refused(named: Part, option: Part) -> None:
    if named != option:
        (plan,) = plans(options(named.text, **{option.option: option.value}))
        assert getattr(plan, named.name) == as_part(named.name, named.value)
        assert getattr(plan, option.name) == as_part(option.name, option.value)
        return
    assert plans(options(named.text, **{option.option: option.value})) == plans(options(named.text))
    with pytest.raises(BadInput, match=f"contradicts the plan .*own {named.name}"):
        plans(options(named.text, **{option.option: option.other}))


@pytest.mark.parametrize("part", PARTS, ids=lambda each: each.name)
def test_a_list_of_values_makes_a_plan_for_each(part: Part) -> None:
    asked = RequestOptions(plan="ring", **{**BASE, part.option: (part.value, part.other)})  # type: ignore[arg-type]
    values = [as_part(part.name, text) for text in (part.value, part.other)]
    assert [getattr(plan, part.name) for plan in plans(asked)] == values


def test_all_and_auto_contradict_a_part_that_the_text_names() -> None:
    for text, named in (("ring/zigzag", {"layout": "all"}), ("ring@ring=4", {"mesh": "auto"})):
        with pytest.raises(BadInput, match="contradicts"):
            parse_request(options(text, **named))
    with pytest.raises(BadInput, match="contradicts"):
        parse_request(options("ring@ring=4,tile=512", tile="all"))
    with pytest.raises(BadInput, match="--scheme contradicts"):
        parse_request(options("ring", scheme="ulysses"))
    assert parse_request(options("ring", scheme="ring")).plans == [Plan("ring")]


@pytest.mark.parametrize("kernel", ["nonsense", "rong"])
def test_an_unknown_name_beside_a_plan_is_refused(kernel: str) -> None:
    with pytest.raises(BadInput, match="unknown kernel"):
        parse_request(options("ring/zigzag@ring=4", kernel=kernel))


@pytest.mark.parametrize(
    ("text", "passes", "part"),
    [
        ("ring@remat=attention", "forward", "remat=attention"),
        ("ring@chunk=64", "forward-backward", "chunk=64"),
        ("ring@zero=0", "forward", "zero=0"),
        ("ring@tile=512,backward=256", "forward", "backward=256x256"),
        ("lasp@states=recomputed", "forward", "states=recomputed"),
    ],
)
def test_a_part_that_no_pass_of_the_run_uses_is_refused(text: str, passes: str, part: str) -> None:
    with pytest.raises(BadInput, match=f"{part} in the plan .* has no effect"):
        parse_request(RequestOptions(plan=text, **{**BASE, "pass_": passes}))  # type: ignore[arg-type]
    both = {**BASE, "pass_": "forward,step", "model": "1b"}
    assert parse_request(RequestOptions(plan=text, **both))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("plan", "why"),
    [
        ("ulysses@ulysses=4,unroll=2", "ulysses has no loop of rounds"),
        ("ring@ring=2,unroll=2", "ring has a loop of one round"),
        ("rsa@ring=4,remat=attention", "remat=attention has no effect on rsa"),
    ],
)
def test_a_part_that_the_scheme_cannot_honour_is_refused(plan: str, why: str) -> None:
    asked = RequestOptions(plan=plan, **{**BASE, "pass_": "step", "model": "1b"})  # type: ignore[arg-type]
    (case,) = bench_cases(parse_request(asked), LocalTarget(parse_target(TARGET)))
    assert case.status == "refused" and why in str(case.reason)


def words_of(asked: dict[str, object]) -> list[str]:
    return [word for name, value in asked.items() for word in (f"--{name}", str(value))]


def bench_line(asked: dict[str, object]) -> Ended:
    return stripectl("bench", *words_of(asked), "--dry-run", "--quiet")


def bench_suite(asked: dict[str, object]) -> Ended:
    Path("suite.yaml").write_text(json.dumps(asked))
    return stripectl("bench", "suite.yaml", "--dry-run", "--quiet")


def tile_search(asked: dict[str, object]) -> Ended:
    return stripectl("tune-tiles", *words_of(asked), "--dry-run", "--quiet")


def python_call(asked: dict[str, object]) -> Ended:
    """As `stripectl.bench(...)` reads its keywords."""
    try:
        found = plans(RequestOptions.of({{"pass": "pass_"}.get(name, name): value for name, value in asked.items()}))
    except BadInput as refusal:
        return Ended(refusal.exit_code, "", str(refusal))
    return Ended(0, "\n".join(map(str, found)), "")


@pytest.mark.parametrize("route", [bench_line, bench_suite, tile_search, python_call], ids=lambda each: each.__name__)
def test_every_command_refuses_the_same(route: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for part in PARTS:
        asked = {"target": TARGET, "seqlen": "64k", "method": "simulated", "pass": "forward", "plan": part.text}
        plain, same, other = (
            route({**asked, **rest}) for rest in ({}, {part.option: part.value}, {part.option: part.other})
        )
        assert plain.returncode == 0 and same == plain, part
        assert other.returncode == 2 and f"--{part.option} contradicts the plan {part.text}" in other.stderr, (
            part,
            other,
        )


def test_a_resumed_run_refuses_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["bench", *words_of({"target": TARGET, "seqlen": "64k", "method": "simulated", "pass": "forward"})]
    words += ["--plan", "ring/zigzag@ring=4", "-o", "run", "--quiet"]
    assert stripectl(*words).returncode == 0
    before = Path("run/run.json").read_text()
    refused = stripectl(*words, "--resume", "--layout", "striped")
    assert refused.returncode == 2 and "--layout contradicts the plan ring/zigzag@ring=4" in refused.stderr
    assert Path("run/run.json").read_text() == before
    assert stripectl(*words, "--resume", "--layout", "zigzag").returncode == 0
