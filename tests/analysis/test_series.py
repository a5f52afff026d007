"""A metric over runs: what is one series, what is said of it, and the tables of `stripectl history`."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stripectl.analysis.metrics import METRICS
from stripectl.analysis.series import Series, series_of
from stripectl.cli.history import METRICS as FOLLOWED
from stripectl.core.plan import read_plan
from stripectl.hardware.target import read_target
from stripectl.reporters import history_text
from stripectl.reporters.terminal.history import BREAK, MAX_TREND_CHARACTERS, trend
from stripectl.results.history import History
from stripectl.results.measurement import Measurement
from stripectl.results.run import Run
from tests.support.command import run as stripectl
from tests.support.factories import FORWARD, because, timed_ring, with_parts
from tests.support.histories import BUNDLES, EVIL, NOISE, night, rings_at

CHIP = [{"kind": "TPU v5p", "platform": "tpu", "count": 4}]


def nights(*measurements: Measurement, **environment: Any) -> list[Run]:
    """A measurement a night."""
    return [night(number, m, **environment) for number, m in enumerate(measurements)]


def only(runs: Sequence[Run], metric: str = "time") -> Series:
    (found,) = series_of(runs, METRICS[metric])
    return found


def test_the_command_follows_every_metric_that_is_a_number() -> None:
    assert tuple(name for name in METRICS if name != "fits") == FOLLOWED


def test_a_change_is_told_with_its_commit_date_and_size() -> None:
    series = only(nights(*rings_at((12, 0.5), (6, 0.55))))
    (change,) = series.changes
    assert series.points[change.at].run.id == "night 12"
    said = history_text.change_since(change, series)
    assert said.startswith("since 0000000 (2026-11-13): 9.") and " slower [+" in said
    assert history_text.last_change(series) == f"{history_text.change_size(change, series)} since 0000000"


def test_a_change_of_each_run_is_over_the_level_before() -> None:
    series = only(nights(*rings_at((12, 0.5), (6, 0.55))))
    assert series.points[0].change is None
    assert series.points[1].change == pytest.approx(NOISE[1] / NOISE[0] - 1)
    first = sorted(NOISE[:12])
    assert series.points[12].change == pytest.approx(1.1 * NOISE[12] / ((first[5] + first[6]) / 2) - 1)
    assert series.points[13].change == pytest.approx(NOISE[13] / NOISE[12] - 1)


def test_what_is_simulated_or_counted_changes_wherever_it_differs() -> None:
    sheet = {"source": "datasheet"}
    simulated = [timed_ring("striped", time_s, "simulated", cost_source=sheet) for time_s in (1.0, 1.0, 1.01)]
    assert [change.at for change in only(nights(*simulated)).changes] == [2]
    sent = [timed_ring("striped", 0.5, bytes={"permute": count}) for count in (100, 100, 104)]
    assert history_text.last_change(only(nights(*sent), "sent")) == "4.0% more since 0000000"


def test_what_stands_on_timed_tiles_is_noisy() -> None:
    series = only(nights(*(timed_ring("striped", time_s, "simulated") for time_s in (1.0, 1.0, 1.01))))
    assert not series.exact and series.changes == []
    assert history_text.last_change(series) == "n/a, 3 of 10 runs"


def test_machines_are_told_apart() -> None:
    here, there = {"processor": "one", "cores": 2}, {"processor": "other", "cores": 2}
    runs = [night(at, timed_ring("striped", 0.5), host=host) for at, host in enumerate((here, there, here, there))]
    found = series_of(runs, METRICS["time"])
    assert [(each.place, len(each.points)) for each in found] == [("other, 2 cores", 2), ("one, 2 cores", 2)]
    m = timed_ring("striped", 0.5, "compiled", cost_source=BUNDLES)
    compiled = [night(at, m, host=host) for at, host in enumerate((here, there))]
    assert only(compiled).place == ""
    assert only([night(0, timed_ring("striped", 0.5), devices=CHIP, host=here)]).place == "TPU v5p"


def test_what_is_new_around_a_run_is_said() -> None:
    versions = [{"jax": "0.10.1", "python": "3.11"}, {"jax": "0.10.1", "python": "3.11"}, {"jax": "0.10.2"}]
    series = only([night(at, timed_ring("striped", 0.5), versions=each) for at, each in enumerate(versions)])
    assert [list(point.marks) for point in series.points] == [[], [], ["jax 0.10.1 -> 0.10.2", "python 3.11 -> none"]]
    many = [{str(name): at for name in range(9)} for at in range(2)]
    series = only([night(at, timed_ring("striped", 0.5), flags=each) for at, each in enumerate(many)])
    assert series.newest.marks[-1] == "and 6 more"


@pytest.mark.parametrize(
    "strange", ["text", 7, None, [["list"]], {"host": 7, "versions": [1], "devices": [3, {"kind": 4}]}]
)
def test_an_environment_may_be_anything(strange: Any) -> None:
    around = strange if isinstance(strange, dict) else {"host": strange, "versions": strange, "devices": strange}
    series = only(nights(timed_ring("striped", 0.5), timed_ring("striped", 0.5), **around, git=strange))
    assert len(history_text.series_rows(series)) == 2


def test_a_run_without_a_value_is_shown_and_no_level() -> None:
    members = rings_at((12, 0.5), (6, 0.6))
    members.insert(12, replace(members[0], status="failed", reason=because("it died"), median_s=None))
    series = only(nights(*members))
    assert [change.at for change in series.changes] == [13]
    assert history_text.series_rows(series)[12][2] == "failed"
    assert [(level.first, level.end, len(level.values)) for level in series.levels] == [(0, 13, 12), (13, 19, 6)]


def test_what_was_tried_roughly_is_no_series() -> None:
    rough = timed_ring("striped", 0.5, "simulated", cost_source={"source": "short_run"})
    assert series_of(nights(rough, rough), METRICS["time"]) == []


def test_metrics_read_what_a_measurement_says() -> None:
    m = with_parts(
        timed_ring("striped", 0.5),
        peak_flops_per_s=1e9,
        peak_bytes=2**30,
        speedup={"over": "base", "value": 1.5, "ci95": [1.4, 1.6]},
        overlap={"ratio": 0.25},
    )
    said = {name: history_text.point_value(only(nights(m), name).newest, only(nights(m), name)) for name in FOLLOWED}
    rate = FORWARD.flops / 0.5 / 4
    assert said == {
        "time": "500 ms ±1.0%",
        "tokens_per_s": "1.02 ktokens/s ±1.0%",
        "tflops_per_s_per_device": f"{rate / 1e6:.1f} MFLOP/s ±1.0%",
        "mfu": f"{rate / 1e9:.1%} ±1.0%",
        "speedup": "1.50x ±6.7%",
        "overlap": "25.0%",
        "peak": "1.00 GiB",
        "sent": "1.00 MiB",
        "max_rel_error": "2e-07",
        "tiles": "90.0%",
    }
    assert [METRICS[name].better for name in FOLLOWED] == [-1, 1, 1, 1, 1, 1, -1, -1, -1, 1]


def test_speed_ups_over_different_plans_are_different_series() -> None:
    over = [
        with_parts(timed_ring("striped", 0.5), speedup={"over": name, "value": 1.5, "ci95": None})
        for name in ("one", "other")
    ]
    assert [each.place for each in series_of(nights(*over), METRICS["speedup"])] == [
        "a core, 2 cores; over other",
        "a core, 2 cores; over one",
    ]


def test_a_trend_is_drawn_with_its_breaks() -> None:
    drawn = trend(only(nights(*rings_at((12, 0.5), (6, 0.6)))))
    first, last = drawn.split(BREAK)
    assert (len(first), len(last)) == (12, 6) and max(first) < min(last)
    assert set(trend(only(nights(*[timed_ring("striped", 0.5)] * 4)))) == {"▅"}
    assert len(trend(only(nights(*[timed_ring("striped", 0.5)] * (2 * MAX_TREND_CHARACTERS))))) == MAX_TREND_CHARACTERS


@pytest.fixture
def kept(tmp_path: Path, monkeypatch) -> History:
    """Eighteen nights of two layouts in two passes, of which striped became slower."""
    monkeypatch.chdir(tmp_path)
    history = History(Path("kept"))
    both = replace(FORWARD, passes="forward-backward")
    for number, m in enumerate(rings_at((12, 0.5), (6, 0.55))):
        others = (timed_ring("zigzag", 0.4 * NOISE[-number]), timed_ring("striped", 1.2 * NOISE[number], workload=both))
        history.add(night(number, m, *others, versions={"jax": "0.10.2" if number > 11 else "0.10.1"}))
    return history


def test_a_row_a_series(kept: History, capsys) -> None:
    assert stripectl("history", "kept") == 0
    shown = capsys.readouterr().out.splitlines()
    rows = {tuple(line.split()[:2]): line for line in shown if line.startswith("ring/")}
    assert len(rows) == 3
    slower = rows["ring/striped/xla@ring=4,tile=64x64", "forward"]
    assert "slower since 0000000" in slower and " 18  " in slower and BREAK in slower
    assert " none " in rows["ring/zigzag/xla@ring=4,tile=64x64", "forward"]
    assert "  a core, 2 cores" in shown


def test_a_row_a_run(kept: History, capsys) -> None:
    assert stripectl("history", "kept", "--plan", "striped", "--pass", "forward") == 0
    shown = capsys.readouterr().out.splitlines()
    assert len([line for line in shown if line.startswith("2026-11-")]) == 18
    (changed,) = [line for line in shown if "night 12" in line]
    assert "slower; jax 0.10.1 -> 0.10.2" in changed
    assert shown[-2].startswith("  since 0000000 (2026-11-13): ") and shown[-2].endswith("with jax 0.10.1 -> 0.10.2.")


def test_the_newest_runs_alone(kept: History, capsys) -> None:
    assert stripectl("history", "kept", "--last", "6", "--plan", "zigzag") == 0
    shown = capsys.readouterr().out
    assert shown.count("2026-11-") == 6 and "change: n/a, 6 of 10 runs" in shown


def test_the_series_as_json(kept: History, capsys, monkeypatch) -> None:
    monkeypatch.setenv("STRIPECTL_HISTORY", "kept")
    assert stripectl("history", "--json", "--metric", "tokens_per_s", "--plan", "striped", "--pass", "forward") == 0
    content = json.loads(capsys.readouterr().out)
    (series,) = content["series"]
    assert content["metric"] == "tokens_per_s" and len(series["points"]) == 18
    (change,) = series["changes"]
    assert (change["run"], change["better"]) == ("night 12", False)
    assert change["ratio"] == pytest.approx(change["after"] / change["before"] - 1)
    low, high = series["points"][0]["ci95"]
    assert low < series["points"][0]["value"] < high


def test_many_series_stay_readable(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    for at in range(3):
        tiles = [
            replace(
                timed_ring("striped", 1.0, "compiled", cost_source=BUNDLES),
                plan=read_plan(f"ring/striped/xla@ring=4,tile={64 * n}"),
                median_s=1.0 + at * (n == 50),
            )
            for n in range(1, 61)
        ]
        History(Path("kept")).add(night(at, *tiles))
    assert stripectl("history", "kept") == 0
    shown = capsys.readouterr().out.splitlines()
    rows = [line for line in shown if line.startswith("ring/")]
    assert len(rows) == 40 and "tile=3200" in rows[0]
    assert "  20 more series, 0 with a change. To see them, narrow with --plan, --pass or --method." in shown


@pytest.mark.parametrize("text", EVIL)
def test_hostile_text_steers_no_terminal(text: str, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    for number in range(3):
        m = replace(
            timed_ring("striped", 0.5),
            target=read_target(text),
            workload=replace(FORWARD, model=text),
            flags={text: text},
        )
        run = night(number, m, commit=f"{number}{text}", versions={text: f"{text}{number}"}, host={"processor": text})
        History(Path("kept")).add(replace(run, id=f"{text}{number}"))
    for more in ([], ["--plan", "striped"], ["--json"]):
        assert stripectl("history", "kept", *more) == 0
        shown = capsys.readouterr().out
        assert all(letter.isprintable() or letter == "\n" for letter in shown)
