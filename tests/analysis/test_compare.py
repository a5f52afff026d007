"""Two runs compared: verdicts on times, what the machine explains, gates on schedules, and what CI systems read."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from stripectl.analysis.comparison import compare_runs, environment_differences
from stripectl.analysis.schedule_diff import compare_schedules, schedule_facts
from stripectl.core.plan import read_plan
from stripectl.errors import BadInput
from stripectl.results.measurement import Measurement
from stripectl.results.run import Run
from stripectl.statistics.paired_change import holm
from tests.support.command import run as cli
from tests.support.factories import because, noisy_ring, run_of, with_parts, with_samples

STEADY = {"yardstick_s": [1e-3] * 15, "others": 0.0, "throttled": 0, "compiled": 0}


def sampled(median_s: float, noise: float = 0.001, seed: int = 0, count: int = 15, **guards) -> Measurement:
    """Noise as a machine makes it: around the median, and now and then much more."""
    rng = np.random.default_rng(seed)
    factors = 1 + noise * rng.standard_normal(count) + (rng.random(count) < 0.1) * rng.exponential(10 * noise, count)
    return with_parts(with_samples(noisy_ring("striped", 1.0), median_s * factors), noise=STEADY | guards)


def verdict(base: Measurement, new: Measurement, threshold: float = 0.05) -> tuple[str, str]:
    [found] = compare_runs(run_of(base), run_of(new), threshold)
    return found.verdict, found.why


@pytest.mark.parametrize(
    ("new", "noise", "expected"),
    [(2.0, 0.001, "REGRESSED"), (0.5, 0.001, "IMPROVED"), (1.0, 0.001, "UNCHANGED"), (1.04, 0.001, "UNCHANGED")],
)
def test_what_is_sure(new: float, noise: float, expected: str) -> None:
    assert verdict(sampled(1.0, noise), sampled(new, noise, seed=1)) == (expected, "")


def test_what_is_not_sure_says_why() -> None:
    assert verdict(sampled(1.0, 0.2), sampled(1.02, 0.2, seed=1))[0] == "INCONCLUSIVE"
    few = verdict(sampled(1.0, 0.001, count=3), sampled(2.0, 0.001, seed=1, count=3))
    assert few[0] == "INCONCLUSIVE" and "not statistically significant with 3 samples" in few[1]
    assert "fewer than 3 samples" in verdict(sampled(1.0, count=2), sampled(2.0, count=2))[1]


def test_a_change_that_the_machine_explains_is_none() -> None:
    slow, fast = [1.3e-3] * 15, [0.92e-3] * 15
    another = "the machine was 30.0% slower throughout NEW (by the yardstick), which may explain it"
    assert verdict(sampled(1.0), sampled(1.3, seed=1, yardstick_s=slow)) == ("INCONCLUSIVE", another)
    unwatched = replace(sampled(1.3, seed=1), noise=None)
    assert verdict(sampled(1.0), unwatched) == verdict(unwatched, sampled(1.7)) == ("REGRESSED", "")
    assert "8.0% faster throughout NEW" in verdict(sampled(1.0), sampled(1.0, seed=1, yardstick_s=fast))[1]
    assert verdict(sampled(1.0), sampled(1.6, seed=1, yardstick_s=slow))[0] == "REGRESSED"
    assert verdict(sampled(1.0, yardstick_s=slow), sampled(0.77, seed=1))[0] == "INCONCLUSIVE"
    assert verdict(sampled(1.0), sampled(0.77, seed=1, yardstick_s=slow))[0] == "IMPROVED"
    assert "other programs took 60% of the cores in NEW" in verdict(sampled(1.0), sampled(1.3, seed=1, others=0.6))[1]


def lent(median_s: float, slow: float, seed: int) -> Measurement:
    """Cores that are a third slower for a share of the samples, which the yardstick beside them shows, but for some."""
    rng = np.random.default_rng(seed)
    times = np.where(rng.random(120) < slow, 1.33, 1.0)
    seen = np.where(rng.random(120) < 0.05, 1.0, times) * (1 + 0.01 * rng.standard_normal(120))
    m = with_samples(noisy_ring("striped", 1.0), median_s * times * (1 + 0.02 * rng.standard_normal(120)))
    return with_parts(m, noise=STEADY | {"yardstick_s": list(1e-3 * seen)})


@pytest.mark.parametrize(("before", "after"), [(0.2, 0.8), (0.8, 0.2), (0.0, 0.5)])
def test_samples_are_compared_where_the_machine_was_as_fast(before: float, after: float) -> None:
    same = [verdict(lent(1.0, before, seed), lent(1.0, after, seed + 100))[0] for seed in range(20)]
    assert not {*same} - {"UNCHANGED", "INCONCLUSIVE"}
    slower = [verdict(lent(1.0, before, seed), lent(1.1, after, seed + 100)) for seed in range(20)]
    assert [each for each, _ in slower].count("REGRESSED") >= 19, slower
    faster = [verdict(lent(1.1, before, seed), lent(1.0, after, seed + 100)) for seed in range(20)]
    assert [each for each, _ in faster].count("IMPROVED") >= 19, faster


def test_samples_that_drift_and_throttled_clocks_are_counted() -> None:
    base, new = sampled(1.0), sampled(1.15, seed=1)
    drifting = replace(new, samples_s=tuple(1.15 * (1 + 0.3 * (at / 14 - 0.5)) for at in range(15)))
    assert "samples of NEW drift by +17.6% from the first half" in verdict(base, drifting)[1]
    assert "throttled in NEW" in verdict(base, with_parts(new, noise=STEADY | {"throttled": 2}))[1]


def test_an_unchanged_plan_is_seldom_called_changed_and_a_slower_one_nearly_always() -> None:
    """Fixed seeds: the same counts on every machine."""
    same = [verdict(sampled(1.0, 0.03, seed), sampled(1.0, 0.03, seed + 1000))[0] for seed in range(200)]
    assert sum(each in ("REGRESSED", "IMPROVED") for each in same) < 4
    worse = [verdict(sampled(1.0, 0.03, seed), sampled(1.1, 0.03, seed + 1000))[0] for seed in range(100)]
    assert worse.count("REGRESSED") >= 95


def test_many_comparisons_are_held_to_one_chance() -> None:
    """Of many plans with three samples in a hundred by chance, none is called."""
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([]) == [] and holm([0.9, 0.8]) == [1.0, 1.0]
    many = [
        replace(sampled(1.0, 0.05, seed), plan=read_plan(f"ring/striped/xla@ring={2 + seed}")) for seed in range(60)
    ]
    again = [
        replace(sampled(1.0, 0.05, seed + 500), plan=read_plan(f"ring/striped/xla@ring={2 + seed}"))
        for seed in range(60)
    ]
    found = compare_runs(run_of(*many), run_of(*again), 0.0)
    assert not [each for each in found if each.verdict in ("REGRESSED", "IMPROVED")]


def test_what_failed_since_is_broken_what_is_absent_missing_and_nothing_in_common_refused() -> None:
    broken = replace(noisy_ring("striped", 1.0), status="failed", reason=because("x"), median_s=None)
    found = compare_runs(run_of(noisy_ring("striped", 1.0), noisy_ring("zigzag", 1.0)), run_of(broken), 0.05)
    assert [(each.verdict, each.why) for each in found] == [
        ("FAILED", "x"),
        ("MISSING", "NEW does not contain this measurement"),
    ]
    with pytest.raises(BadInput, match="no measurement with equal plan"):
        compare_runs(run_of(noisy_ring("striped", 1.0)), run_of(noisy_ring("zigzag", 1.0)), 0.05)


def saved(folder: Path, name: str, made: Run, **environment) -> str:
    made.environment |= environment
    made.save(folder / name)
    return str(folder / name)


def test_different_environments_are_refused_by_name(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    base = saved(tmp_path, "base", run_of(sampled(1.0)), versions={"jaxlib": "0.10.1"}, host={"cores": 8})
    new = saved(tmp_path, "new", run_of(sampled(2.0, seed=1)), versions={"jaxlib": "0.10.2"}, host={"cores": 8})
    assert cli("compare", base, new) == 2
    said = capsys.readouterr().err
    assert (
        "environments of the runs differ: jaxlib 0.10.1 and 0.10.2. Try --allow-different" in said
        and said.count("\n") == 1
    )
    assert cli("compare", base, new, "--allow-different") == 1
    assert "REGRESSED" in capsys.readouterr().out


def test_a_simulation_does_not_depend_on_the_machine() -> None:
    one, other = (replace(sampled(1.0), method="simulated", samples_s=()) for _ in range(2))
    base, new = run_of(one), run_of(other)
    base.environment, new.environment = {"host": {"cores": 2}}, {"host": {"cores": 4}}
    assert environment_differences(base, new) == []
    assert compare_runs(base, new, 0.05)[0].verdict == "UNCHANGED"


def test_what_ci_systems_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    summary = tmp_path / "summary.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    base = saved(tmp_path, "base", run_of(sampled(1.0), noisy_ring("zigzag", 1.0)))
    new = saved(tmp_path, "new", run_of(sampled(2.0, seed=1), noisy_ring("zigzag", 1.0)))
    files = {name: str(tmp_path / name) for name in ("junit", "markdown", "bencher", "github-benchmark")}
    assert cli("compare", base, new, *(word for name, path in files.items() for word in (f"--{name}", path))) == 1
    shown = capsys.readouterr().out
    assert "REGRESSED" in shown and "1 REGRESSED, 1 UNCHANGED" in shown
    junit = Path(files["junit"]).read_text()
    assert 'tests="2" failures="1"' in junit and 'failure type="REGRESSED"' in junit
    assert Path(files["markdown"]).read_text() == summary.read_text()
    assert "| REGRESSED |" in summary.read_text()
    assert {entry["unit"] for entry in json.loads(Path(files["github-benchmark"]).read_text())} == {"s"}
    assert len(json.loads(Path(files["bencher"]).read_text())) == 2


def compiled(**changes) -> Measurement:
    hop = {"opcode": "collective-permute", "sent_bytes": 100, "times": 15, "asynchronous": True, "beside_tiles": True}
    hop |= {"pass": "forward", "dtype": "bf16"} | changes
    m = with_parts(sampled(1.0), method="compiled", samples_s=(), peak_bytes=1000, overlap={"ratio": 1.0}, noise=None)
    return with_parts(m, compiled_program={"collectives": [hop], "copies": {"per_round": 0, "bytes_per_round": 0}})


@pytest.mark.parametrize(
    ("change", "worse"),
    [
        ({"asynchronous": False}, ["synchronous collective-permutes"]),
        ({"beside_tiles": False}, ["collective-permutes without tiles"]),
        ({"sent_bytes": 200}, ["sent by collective-permute"]),
        ({"times": 14}, []),
        ({"opcode": "all-gather"}, ["sent by all-gather", "all-gathers"]),
    ],
)
def test_a_schedule_that_got_worse_is_named(change: dict, worse: list[str]) -> None:
    found = compare_schedules(run_of(compiled()), run_of(compiled(**change)), 0.0)
    assert [each.name for each in found if each.verdict == "REGRESSED"] == worse
    assert len(found) >= len(schedule_facts(compiled()))


def test_memory_overlap_and_fitting_are_gated() -> None:
    base = run_of(compiled())
    assert [
        f.name
        for f in compare_schedules(base, run_of(replace(compiled(), peak_bytes=1100)), 0.0)
        if f.verdict == "REGRESSED"
    ] == ["memory"]
    assert all(
        f.verdict == "UNCHANGED" for f in compare_schedules(base, run_of(replace(compiled(), peak_bytes=1100)), 0.2)
    )
    less = compare_schedules(base, run_of(with_parts(compiled(), overlap={"ratio": 0.5})), 0.0)
    assert [(f.name, f.shown(f.now)) for f in less if f.verdict == "REGRESSED"] == [("predicted overlap", "50.0%")]
    refused = replace(
        compiled(), status="refused", reason=because("does not fit"), compiled_program=None, peak_bytes=None
    )
    assert [(f.name, f.shown(f.now), f.verdict) for f in compare_schedules(base, run_of(refused), 0.0)] == [
        ("fits", "no", "REGRESSED")
    ]
    assert [f.verdict for f in compare_schedules(base, run_of(sampled(1.0)), 0.0)] == ["MISSING"]


def test_plans_are_paired_under_other_flags_where_that_is_plain() -> None:
    base, synchronous = compiled(), compiled(asynchronous=False)
    flagged = replace(synchronous, flags={"xla_enable_async_collective_permute": "false"})
    assert [f.name for f in compare_schedules(run_of(base), run_of(flagged), 0.0) if f.verdict == "REGRESSED"]
    assert all(f.verdict == "UNCHANGED" for f in compare_schedules(run_of(base), run_of(flagged, base), 0.0))


def test_a_gate_without_compiled_plans_says_how_to_make_them(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    path = saved(tmp_path, "base", run_of(sampled(1.0)))
    assert cli("compare", path, path, "--compare", "schedule") == 2
    assert "--method compiled" in capsys.readouterr().err
