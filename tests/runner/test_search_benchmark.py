"""The benchmark of a search, with few plans: its counts, and what it calls the fastest."""

from pathlib import Path

import pytest

from benchmarks.search import SEARCHES, TILES, able_plans, search
from stripectl.core.reason import ReasonKind
from stripectl.hardware.target import parse_target
from stripectl.runner.backends import EXPLAINED_PLANS

PLANS = 500
RECORDED = (Path(__file__).parents[2] / "benchmarks" / "README.md").read_text()


@pytest.mark.parametrize("name", SEARCHES)
def test_a_search_times_or_refuses_every_plan(name: str) -> None:
    made = search(name, PLANS)
    assert len({m.identity for m in made.found}) == len(made.found) == PLANS
    timed = [m for m in made.found if m.status == "ok"]
    refused = [m for m in made.found if m.status != "ok"]
    assert timed and all(m.median_s for m in timed)
    assert all(m.reason and m.reason.kind == ReasonKind.MEMORY and not m.median_s for m in refused)
    assert made.best.median_s == min(m.median_s or 0.0 for m in timed)
    assert sum(m.scaling is not None for m in made.found) == EXPLAINED_PLANS
    assert len({m.plan.scheme for m in made.found}) > PLANS // len(TILES) // 4  # few plans are spread over schemes


@pytest.mark.parametrize("name", SEARCHES)
def test_the_documented_counts_are_the_counts_of_plans(name: str) -> None:
    target, work = SEARCHES[name]
    count = len(able_plans(work, parse_target(target).devices)) * len(TILES)
    assert f"{name} on {target}, {count:,} plans" in RECORDED
