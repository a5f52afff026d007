"""What is not as it was asked lowers the confidence, has a line, and marks the figures that it distorts."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import stripectl
from stripectl.analysis.distortions import MARK, across_classes, distortion_sentences, distortions, is_distorted
from stripectl.analysis.recommendation import recommend, recommended
from stripectl.core.plan import parse_plan
from stripectl.core.workload import Workload
from stripectl.reporters.cells import measurement_cells
from stripectl.reporters.html.first_screen import first_screen
from stripectl.reporters.markdown_report import run_markdown
from stripectl.results.cost_source import CostOrigin
from stripectl.results.findings import Distortion
from stripectl.results.measurement import Measurement
from stripectl.results.run import Run
from stripectl.runner.replaced_parts import replaced_parts


def bench(**options: Any) -> Run:
    return stripectl.bench(method="simulated", progress=False, **{"target": "v5p:4x4x4", "seqlen": "128k", **options})


def only(run: Run) -> Measurement:
    (m,) = (m for m in run.results if m.devices > 1)
    return m


def test_a_plan_as_it_was_asked_has_no_mark() -> None:
    run = bench(plan="ring/zigzag/tokamax", model="llama3-8b", pass_="forward", tile="1024")
    assert distortions(only(run)) == () and MARK not in str(measurement_cells(only(run), run.results))
    assert run.recommendation and run.recommendation.confidence.grade == "good"
    assert MARK not in run.recommendation.answer


def test_a_distortion_marks_time_and_bytes_and_lower_the_confidence() -> None:
    run = bench(plan="ring/zigzag/tokamax", model="llama3-8b", pass_="forward", tile="1024")
    doubt = Distortion(fact="its layers have another mask", figures=("time", "bytes"), factor=2.0)
    m = replace(only(run), distortions=(doubt,))
    run = recommended(replace(run, measurements=[m]))
    found = run.recommendation
    assert found and found.confidence.grade == "fair" and "Lowered for 1 distortion" in found.confidence.sentence
    (said,) = distortion_sentences([m])
    assert said.startswith("its layers have another mask; attention is timed about 2")
    cells = measurement_cells(m, run.results)
    assert {name for name, cell in cells.items() if MARK in cell.text} == {"time", "sent"}
    lines = {each.name: each.text for each in found.statements}
    assert (
        found.answer.endswith(f" {MARK}.")
        and lines["time"].endswith(MARK)
        and said in lines["distorted"]
        and MARK not in lines["memory"]
    )
    assert said.split(";")[0] in run_markdown(run)
    assert first_screen(found, run.results)["distorted"] == [lines["distorted"]]


def test_memory_alone_does_not_lower_the_confidence() -> None:
    run = bench(plan="ring/zigzag", model="llama3-8b", pass_="forward")
    m = only(run)
    doubtful = replace(m, distortions=(Distortion(fact="a vision encoder, omitted", figures=("memory",)),))
    found = recommend(replace(run, measurements=[doubtful]))
    assert found and run.recommendation and found.confidence == run.recommendation.confidence
    assert is_distorted(doubtful, "memory") and any(each.name == "distorted" for each in found.statements)


def test_parts_of_a_step_are_no_parts_of_attention() -> None:
    sizes = {"hidden": 2880, "feed_forward": 11520, "layers": 36, "vocabulary": 201088}
    attention = Workload(seq_len=2**15, heads=64, kv_heads=8, head_dim=64, model="gpt-oss-120b")
    step = replace(attention, passes="step", **sizes)
    assert not replaced_parts(attention)
    assert [each.fact.split()[0] for each in replaced_parts(step)] == ["128"]


def test_a_reference_loop_beside_a_fused_kernel_is_named_everywhere() -> None:
    run = bench(target="h100:8", plan=["ring/zigzag/cudnn@ring=8", "ulysses/contiguous/xla@ulysses=8"], pass_="forward")
    loop = next(m for m in run.results if m.plan.kernel == "xla" and m.devices > 1)
    assert is_distorted(loop, "time") and "xla is a reference loop" in distortion_sentences([loop])[0]
    assert run.recommendation and "over the reference loop xla" in run.recommendation.answer
    fused = next(m for m in run.results if m.plan.kernel == "cudnn" and m.speedup)
    assert "over the reference loop xla" in measurement_cells(fused, run.results)["speed-up"].text


def test_a_workload_that_no_fused_kernel_computes_says_why() -> None:
    run = bench(plan="ring/zigzag", target="h100:8", mask="sliding:4k", pass_="forward")
    (said,) = distortion_sentences([only(run)])
    assert "much slower than cudnn: cudnn has causal and full masks, but no windows" in said


def test_classes_of_kernels() -> None:
    fused, loop = parse_plan("ring/zigzag/splash@ring=8"), parse_plan("ring/zigzag/xla@ring=8")
    assert across_classes(fused, loop) == "over the reference loop xla"
    assert across_classes(loop, fused) == "by the reference loop xla"
    assert across_classes(fused, fused) == across_classes(loop, loop) == ""


def test_a_tile_far_from_the_table_is_marked() -> None:
    run = bench(plan="ring/contiguous/splash@ring=64,tile=128x1792", mask="full", pass_="forward")
    assert any("is extrapolated from tile" in each for each in distortion_sentences([only(run)]))


def test_distortions_are_in_the_file_of_a_run(tmp_path: Path) -> None:
    bench(plan="ring/zigzag", model="gpt-oss-120b", pass_="step", output=tmp_path / "run")
    read = Run.load(tmp_path / "run")
    assert [each.fact.split()[0] for m in read.measurements if m.devices > 1 for each in m.distortions] == ["128"]


@pytest.mark.parametrize("known", ["simulated", "timed here"])
def test_tiles_without_the_soft_cap_mark_the_time(known: str) -> None:
    m = only(bench(plan="ring/zigzag/pallas_tpu", model="llama3-8b", pass_="forward", tile="1024"))
    capped = replace(m, workload=replace(m.workload, soft_cap=50.0))
    if known == "timed here":
        assert m.cost_source
        source = replace(m.cost_source, source=CostOrigin.MEASURED_TILE)
        assert distortions(replace(capped, cost_source=source)) == ()
        return
    assert distortions(m) == () and is_distorted(capped, "time") and not is_distorted(capped, "bytes")
    assert distortion_sentences([capped]) == [
        "the cost of a tile of pallas_tpu does not include the soft cap of scores (distorts time, speedup)."
    ]
