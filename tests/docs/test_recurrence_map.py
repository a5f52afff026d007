"""The documented comparisons of ways to exchange states, as the code simulates them now."""

import re
from pathlib import Path

import pytest

import stripectl
from benchmarks.recurrence_map import STATES, TARGETS, Assumed, ratios, simulated_row, winners
from stripectl.util.units import duration

ROOT = Path(__file__).parents[2]
RECORDED = (ROOT / "benchmarks" / "README.md").read_text()
HOW_TO = (ROOT / "docs" / "how-to" / "linear-attention.md").read_text()


@pytest.mark.parametrize("target", TARGETS)
def test_the_map_of_winners_is_the_documented_map(target: str) -> None:
    row = simulated_row(target, "gdn", "forward-backward", Assumed(0.0, 1.0))
    fixed = [duration(row.fixed_s[scheme]) for scheme in STATES]
    shown = f"| {target} | {' | '.join(fixed)} | {winners(row)} | {ratios(row, 2**15)}, {ratios(row, 2**18)} |"
    assert shown in RECORDED
    if documented := re.search(rf"^{re.escape(target)} .*$", HOW_TO, re.MULTILINE):
        *times, fastest = re.split(r" {2,}", documented[0].removeprefix(target).strip())
        assert times == fixed
        assert re.findall(r"all-to-all|chain|gather|scan", fastest) == re.findall(r": (\S+?)(?:;|$)", winners(row))


PLANS = {  # by their names in the documentation
    "contiguous": "lasp2/contiguous/pallas_gated@ring=16,tensor=2,softmax=ring/pallas_tpu",
    "zigzag": "lasp2/contiguous/pallas_gated@ring=16,tensor=2,softmax=ring/zigzag/pallas_tpu",
    "striped": "lasp2/contiguous/pallas_gated@ring=16,tensor=2,softmax=ring/striped/pallas_tpu",
    "zigzag, as of the linear layers": "lasp2/zigzag/pallas_gated@ring=16,tensor=2,softmax=ring/pallas_tpu",
}


def test_hybrid_steps_take_the_documented_times() -> None:
    run = stripectl.bench(
        plan=[*PLANS.values()],
        model="qwen3-next-80b-a3b",
        pass_="step",
        seqlen="256k",
        target="v5p:4x4x4",
        method="simulated",
        progress=False,
    )
    for name, found in zip(PLANS, run.measurements, strict=True):
        shown = re.search(rf"^{re.escape(name)} {{2,}}(\S+ s) ", HOW_TO, re.MULTILINE)
        assert shown and found.median_s and shown[1] == duration(found.median_s)
