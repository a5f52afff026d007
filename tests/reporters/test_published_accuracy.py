"""The figure that compares predictions with published measurements: its dots are figures of `stripectl accuracy`."""

from dataclasses import replace

import pytest

from stripectl.analysis.accuracy.attention import attention_groups, published_devices
from stripectl.analysis.accuracy.meshes import mesh_times
from stripectl.analysis.accuracy.paper import measured_devices, speed_ups
from stripectl.hardware.target import read_target
from stripectl.reporters.html import published_accuracy
from stripectl.reporters.html.published_accuracy import Ratios
from stripectl.results.case import Method
from tests.support.factories import LONG, run_of, timed_ring
from tests.support.pages import content_of

TPU = replace(LONG, dtype="bfloat16")


def test_every_published_measurement_is_a_dot() -> None:
    chart = published_accuracy.of_hardware(None)
    assert chart and isinstance(chart.drawing, Ratios)
    rows, dots = chart.drawing.kinds, chart.drawing.dots
    numbers = [sum(dot.order == row.order for dot in dots) for row in rows]
    counts = [each.error.rows for name in published_devices() for each in attention_groups(name, pooled=True)]
    counts += [len(speed_ups(name)) for name in measured_devices()]
    assert sorted(numbers) == sorted([*counts, len(mesh_times())])
    assert all(row.error.startswith(f"{count} ") for row, count in zip(rows, numbers, strict=True))
    assert len(dots) == len(chart.table["rows"]) + chart.table["left_out"]


def test_a_dot_has_the_ratio_of_its_measurement() -> None:
    (meshes,) = [kind for kind in published_accuracy.kinds("v5p") if "mesh" in kind.name]
    assert [each.ratio for each in meshes.comparisons] == [each.simulated / each.measured for each in mesh_times()]
    group = next(iter(attention_groups("v5p", pooled=True)))
    own = next(kind for kind in published_accuracy.kinds("v5p") if group.measured in kind.name)
    worst = max(max(each.ratio, 1 / each.ratio) for each in own.comparisons)
    assert worst - 1 == pytest.approx(group.error.worst)
    assert not own.fitted and f"{group.error.mean:.1%}" in own.error


@pytest.mark.parametrize(
    ("target", "method", "shown"),
    [
        ("v5p:2x2x2", "compiled", 1),
        ("h100:8", "simulated", 1),
        ("v5p:2x2x2", "measured", 0),
        ("v5e:2x4", "compiled", 0),
    ],
)
def test_a_report_shows_the_devices_that_it_predicts_for(target: str, method: Method, shown: int) -> None:
    m = replace(timed_ring("zigzag", 1.0, method, TPU), target=read_target(target))
    found = content_of(run_of(m))["published"]
    assert [chart.subject for chart in found] == [target.partition(":")[0]] * shown
