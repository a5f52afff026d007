"""Profiles and targets."""

from pathlib import Path

import pytest

from stripectl import BadInput
from stripectl.hardware import Hardware, hardware_names, hiding_block, named_by_device
from stripectl.topology import parse_target


@pytest.mark.parametrize("name", hardware_names())
def test_profiles_load_and_every_figure_has_a_source(name: str) -> None:
    hardware = Hardware.load(name)
    assert set(hardware.sources) == set(hardware.figures)
    assert hardware.name == name
    if hardware.kind != "cpu":
        assert hardware.flops_per_s("bfloat16") and hardware.figure("hbm_bytes")
        assert named_by_device(hardware.device_kinds[0]) == hardware


def test_figures_are_per_device_not_per_chip() -> None:
    assert Hardware.load("v3").flops_per_s("bfloat16") == 123e12 / 2
    assert parse_target("tpu7x:2x2x1").devices == 8


def test_the_block_whose_hop_hides() -> None:
    v5p = Hardware.load("v5p")
    assert hiding_block(v5p, "bfloat16", 2) == pytest.approx(459e12 / 90e9)
    assert hiding_block(v5p, "bfloat16", 2, group=4) == pytest.approx(459e12 / 90e9 / 4)
    assert hiding_block(v5p, "bfloat16", 2, pairs_share=0.5) == pytest.approx(2 * 459e12 / 90e9)
    assert hiding_block(Hardware.load("cpu"), "bfloat16", 2) is None


@pytest.mark.parametrize("text", ["cpu:2", "h100:8", "v5e:4x4", "v4:2x2x4", "v5p:8"])
def test_targets_print_as_they_are_written(text: str) -> None:
    assert str(parse_target(text)) == text


@pytest.mark.parametrize("text", ["", "cpu", "cpu:0", "cpu:x", "h100:2x4", "v5e:2x2x2", "nothing:3", "v4:99999999"])
def test_targets_that_are_refused(text: str) -> None:
    with pytest.raises(BadInput):
        parse_target(text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("kind: cpu\nfigures: {hbm_bytes: 3}\n", "no positive number"),
        ("kind: cpu\nfigures: {hbm_bytes: {value: -1, source: x}}\n", "no positive number"),
        ("kind: cpu\nfigures: {hbm_bytes: {value: 1}}\n", "no source"),
        ("kind: cpu\nfigures: {hbm_byts: {value: 1, source: x}}\n", "Did you mean hbm_bytes"),
        ("kind: vax\n", "must be one of cpu, tpu, gpu"),
        ("knd: cpu\nkind: cpu\n", "Did you mean kind"),
    ],
)
def test_profiles_that_are_refused(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(BadInput, match=why):
        Hardware.load(str(tmp_path / "mine.yaml"))
