"""Whether plans fit in memory: they do, they do not, or it is too close to tell, and every output says the same."""

from dataclasses import replace
from typing import Any

import pytest

from stripectl.analysis.claim_verdicts import judge_claims
from stripectl.analysis.claims import parse_claim
from stripectl.analysis.explanation import memory_sentence
from stripectl.analysis.metrics import METRICS
from stripectl.analysis.note import lines_of_note
from stripectl.analysis.notes.memory_shortage import memory_shortages
from stripectl.analysis.recommendation import recommend
from stripectl.core.plan import parse_plan, read_plan
from stripectl.core.workload import Workload
from stripectl.costs.defaults import with_defaults
from stripectl.hardware.profile import Hardware, hardware_names
from stripectl.hardware.target import read_target
from stripectl.models.model_files import load_model
from stripectl.reporters.cells import memory_cell
from stripectl.reporters.html.memory import of_run
from stripectl.reporters.terminal.tables import shown_columns
from stripectl.results.fit import JAX_SHARE, SURE_SHARE, Fit, check_memory, jax_share, limit_sentences, memory_fit
from stripectl.results.measurement import Measurement
from stripectl.results.measurement_set import with_speedups
from stripectl.simulate.step_memory import predicted_peak_bytes
from tests.support.factories import measurement_of, run_of

HAS = 80 * 2**30
WORK = Workload(seq_len=2**18, heads=16, kv_heads=16, head_dim=128, model="1b")


def plan(share: float | None, method: Any = "simulated", target: str = "h100:8", **changes: Any) -> Measurement:
    """A plan that needs this share of the memory of a device."""
    needs = None if share is None else round(share * HAS)
    known = {"workload": WORK, "peak_bytes": needs, "hbm_bytes": HAS}
    return measurement_of("ring/striped/xla@ring=8,tile=512", target=target, method=method, **known | changes)


@pytest.mark.parametrize(
    ("method", "target", "exact"),
    [
        ("simulated", "h100:8", False),
        ("simulated", "v5p:2x2x2", False),
        ("compiled", "h100:8", False),
        ("compiled", "v5p:2x2x2", True),
        ("measured", "h100:8", True),
    ],
)
def test_a_figure_that_is_not_exact_does_not_tell_near_the_limit(method: str, target: str, exact: bool) -> None:
    shares = (0.5, SURE_SHARE - 1e-6, SURE_SHARE + 1e-6, 1.0, 1.0 + 1e-6)
    found = [memory_fit(plan(share, method, target)) for share in shares]
    near = Fit.FITS if exact else Fit.TOO_CLOSE
    assert found == [Fit.FITS, Fit.FITS, near, near, Fit.EXCEEDS]
    checked = [check_memory(plan(share, method, target)) for share in shares]
    assert [m.status for m in checked] == ["ok"] * 4 + ["refused"]
    assert "does not fit" in str(checked[-1].reason)


def test_plans_of_unknown_memory_fit_where_a_program_exists() -> None:
    assert memory_fit(plan(None)) is None
    assert memory_fit(plan(None, "compiled")) == memory_fit(plan(0.5, "measured", hbm_bytes=None)) == Fit.FITS


@pytest.mark.parametrize(
    ("share", "figure", "shown", "verdict"),
    [
        (0.5, 1.0, "it fits", "PASS"),
        (0.98, 0.5, "too close to tell", "INCONCLUSIVE"),
        (1.1, 0.0, "it does not fit", "FAIL"),
    ],
)
def test_claims_and_metrics_know_three_outcomes(share: float, figure: float, shown: str, verdict: str) -> None:
    m, metric = plan(share), METRICS["fits"]
    assert metric.of(m) == figure and metric.shown(figure) == shown
    (found,) = judge_claims([parse_claim("fits")], [("run", run_of(m))])
    (finding,) = found.findings
    assert (found.verdict, finding.said) == (verdict, shown)


def test_terminal_and_page_say_that_it_is_too_close_to_tell() -> None:
    near, far = plan(0.98), plan(0.5)
    assert ["memory" in shown_columns([m], with_speedups([m])) for m in (near, far)] == [True, False]
    assert (memory_cell(near), memory_cell(far)) == ("98% of 80.0 GiB, too close to tell", "50% of 80.0 GiB")
    (chart,) = of_run([near, far])["groups"][0]["charts"]
    assert [row[-1] for row in chart.table["rows"]] == ["ok", "too close to tell"]
    sentence = "One plan needs more than 97% of a device's memory, which is too close to tell."
    assert sentence in chart.note
    assert str(lines_of_note("nearly_full", run_of(near, far))[0]) == f"memory  o{sentence[1:-1]}"
    assert lines_of_note("nearly_full", run_of(far, plan(1.1, status="refused", median_s=None))) == []


def test_the_recommendation_says_it_too() -> None:
    slow = replace(plan(0.5), plan=read_plan("ring/contiguous/xla@ring=8,tile=512"), median_s=2.0)
    found = recommend(run_of(plan(0.98), slow))
    assert found
    assert memory_sentence(found) in found.reasons
    assert (
        "98% of 80.0 GiB. It needs more than 97% of a device's memory, which is too close to tell."
        in memory_sentence(found)
    )
    assert memory_sentence(found).endswith("that JAX takes by default: set XLA_CLIENT_MEM_FRACTION=0.99.")


@pytest.mark.parametrize(
    ("shares", "said"),
    [
        ([0.5, JAX_SHARE], None),
        ([0.5, 0.8], "one plan needs more than the 75% of a GPU's memory that JAX takes by default: set {}=0.81"),
        ([0.76, 0.809], "2 plans need more than the 75% of a GPU's memory that JAX takes by default: set {}=0.81"),
        ([0.999], "one plan needs more than the 75% of a GPU's memory that JAX takes by default: set {}=0.99"),
    ],
)
def test_the_share_that_jax_takes_is_named_where_it_is_not_enough(shares: list[float], said: str | None) -> None:
    sentences = limit_sentences(map(plan, shares))
    expected = [said.format("XLA_CLIENT_MEM_FRACTION")] if said else []
    assert [each for each in sentences if "JAX" in each] == expected
    assert jax_share(plan(0.8, target="v5p:2x2x2")) == jax_share(plan(0.8, "measured")) == jax_share(plan(1.1)) == 0


def test_enough_devices_are_surely_enough() -> None:
    """A plan that is too close to tell is not said to fit."""
    work = replace(WORK, seq_len=2**22)
    m = plan(1.5, workload=work, status="refused", median_s=None)
    (shortage,) = memory_shortages(run_of(m))
    assert shortage.wider
    needs = predicted_peak_bytes(work, shortage.wider, "gpu")
    tight = replace(m, hbm_bytes=int(needs / (SURE_SHARE + 0.01)), peak_bytes=2 * needs)
    (more,) = memory_shortages(run_of(tight))
    assert more.wider and more.wider.devices > shortage.wider.devices


def test_enough_devices_are_known_for_layers_of_several_kinds() -> None:
    """Each kind has its own usual tile."""
    machine = read_target("v5p:2x2x4").machine
    assert machine
    for name, scheme, part in (
        ("gpt-oss-120b", "ring/zigzag", "sliding=halo/pallas_tpu/512x512"),
        ("qwen3-next-80b-a3b", "lasp2", "softmax=all_gather/splash/512x512"),
    ):
        work = Workload(seq_len=2**17, passes="step", model=name, **load_model(name).step_sizes)
        named = str(with_defaults(parse_plan(f"{scheme}@ring=16"), work, machine, 16))
        m = measurement_of(named, workload=work, target="v5p:2x2x4", method="simulated", status="refused")
        (shortage,) = memory_shortages(run_of(replace(m, hbm_bytes=95 * 2**30, peak_bytes=128 * 2**30)))
        assert shortage.wider and shortage.wider.devices > 16 and str(shortage.wider).endswith(part)


SOLD_GB = {"h100-96gb": 96, "h20": 96, "h200": 141, "b200": 180, "gb200": 186, "gb300": 288}
SOLD_GB |= dict.fromkeys(("a100", "a800", "h100", "h800"), 80) | dict.fromkeys(("l20", "l40s"), 48)
SOLD_GB |= {"rtx4090": 24, "rtx5090": 32}


@pytest.mark.parametrize("name", [name for name in hardware_names() if Hardware.load(name).kind == "gpu"])
def test_the_memory_of_a_gpu_is_what_its_driver_reports(name: str) -> None:
    """More than the vendor's decimal figure except where error correction takes a part; and never twice in one file."""
    hardware = Hardware.load(name)
    least = 0.99 if "error correction" in hardware.sources["hbm_bytes"] else 1.0
    assert least < hardware.figures["hbm_bytes"] / (SOLD_GB[name] * 1e9) < 1.08
    assert "device_memory_size" not in hardware.compiler and "driver" in hardware.sources["hbm_bytes"]
