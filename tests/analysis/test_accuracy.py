"""Predictions beside published measurements: their errors are counts of a table, which do not flicker."""

import json
from dataclasses import replace
from typing import Any

import pytest

from stripectl.analysis.accuracy import compiled_steps
from stripectl.analysis.accuracy.attention import attention_groups, attention_rows, known_error, published_devices
from stripectl.analysis.accuracy.meshes import as_jax_lays_it, mesh_orders, mesh_times, published_plans
from stripectl.analysis.accuracy.paper import measured_devices, paper_kernel, speed_ups
from stripectl.core.workload import Workload
from tests.support.command import run


def test_every_row_that_ships_is_read() -> None:
    assert len(attention_rows()) == 169
    assert {row.ours for row in attention_rows()} == {"tokamax", "cudnn"}


GROUPS = [group for name in published_devices() for group in attention_groups(name)]


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: f"{group.hardware}-{group.passes}")
def test_attention_on_one_device_is_predicted(group) -> None:
    assert group.error.mean <= 0.07 and group.error.worst <= 0.25
    assert group.fitted == (group.ours == "cudnn")


def test_rows_that_set_a_constant_are_no_predictions() -> None:
    """The waits of a step on TPU7x are derived from its longest sequences, with heads of one size."""
    constant = [row for row in attention_rows() if row.sets_a_constant]
    assert [(row.q_len, row.head_dim, row.passes) for row in constant] == [
        (2**17, heads, passes) for passes in ("forward", "backward") for heads in (128, 256)
    ]
    assert all(group.error.rows == 7 for group in GROUPS if group.hardware == "tpu7x")


def test_the_papers_speed_ups_are_simulated() -> None:
    errors = [each.error for name in measured_devices() for each in speed_ups(name)]
    assert len(errors) == 68 and (sum(error**2 for error in errors) / len(errors)) ** 0.5 < 0.03
    for constants in paper_kernel().values():
        assert [constants.tile, constants.boundary, constants.dead].count(None) == 1


def test_the_papers_speed_ups_are_predicted_from_compiled_steps() -> None:
    ours, theirs = compiled_steps.compiled_errors()
    assert ours.rows == theirs.rows == 14
    assert theirs.fitted and theirs.rmse <= 0.08
    assert not ours.fitted and 0.1 < ours.mean < 0.3  # estimated cycles of xla's tiles are too many


def test_meshes_are_simulated_beside_those_that_ran() -> None:
    assert len(mesh_times()) == 15 and sum(order.pairs for order in mesh_orders()) == 21
    assert sum(order.right for order in mesh_orders()) >= 19
    assert sum(order.ties for order in mesh_orders()) == 9 and sum(order.near for order in mesh_orders()) == 9
    assert all(order.lost <= 0.03 for order in mesh_orders())
    assert all(0.7 < cell.ratio < 1.3 for cell in mesh_times())
    assert all(0.9 < cell.ratio < 1.1 for cell in mesh_times() if cell.seq_len == 2**18)


def test_meshes_lie_where_jax_lays_them() -> None:
    """A ring or a group that has no side of the torus to itself: its hops share links."""
    for plan in published_plans():
        order = as_jax_lays_it(plan)
        assert sorted(order.order) == list(range(64))
        slowest = min(hop.bytes_per_s.min() for hop in order.hop_costs.values())
        shares = plan.size("ulysses") in (2, 8)
        assert (slowest < order.target.hardware.figures["link_bytes_per_s_one_way"]) == shares
        whole = order.collective_spreads[frozenset(axis for axis, size in plan.mesh or () if size > 1)]
        assert (whole.gather_ways is None) == shares


@pytest.mark.parametrize(
    ("hardware", "kernel", "change", "passes"),
    [
        ("v5p", "tokamax", {}, "forward"),
        ("tpu7x", "tokamax", {"passes": "forward-backward"}, "backward"),
        ("h200", "cudnn", {"mask": "full"}, "forward"),
        ("v4", "tokamax", {}, None),  # a device without rows
        ("v5p", "splash", {}, None),  # a kernel without rows
        ("v5p", "tokamax", {"passes": "forward-backward"}, None),
        ("v5p", "tokamax", {"mask": "sliding:4k"}, None),
        ("v5p", "tokamax", {"dtype": "float32"}, None),
        ("v5p", "tokamax", {"documents": (2**12,)}, None),
    ],
)
def test_an_error_is_known_for_the_kernel_pass_mask_and_dtype_of_published_times(
    hardware: str, kernel: str, change: dict[str, Any], passes: str | None
) -> None:
    work = replace(Workload(seq_len=2**15, heads=8, kv_heads=8, head_dim=128), **change)
    known = known_error(hardware, kernel, work)
    assert (known and (known.ours, known.passes)) == ((kernel, passes) if passes else None)


def test_the_command_shows_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("accuracy", "--rows") == 0
    said = capsys.readouterr().out
    assert "tokamax splash" in said and "fitted to them" in said and "Kendall's tau" in said


def test_the_command_gives_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("accuracy", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert {each["hardware"] for each in found["attention"]} == {"v5p", "tpu7x", "h100", "h200", "gb300"}
    assert found["paper_constants"].keys() == {"a100", "v3", "v4"}
