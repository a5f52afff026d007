"""Profiles and targets."""

from pathlib import Path

import pytest
import yaml

from stripectl.errors import BadInput
from stripectl.hardware.placement import place_mesh
from stripectl.hardware.profile import Hardware, hardware_names, min_hiding_rows, named_by_device
from stripectl.hardware.target import parse_target


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


def test_the_block_whose_hop_hides() -> None:
    v5p = Hardware.load("v5p")
    assert min_hiding_rows(v5p, "bfloat16", 2) == pytest.approx(459e12 / 90e9)
    assert min_hiding_rows(v5p, "bfloat16", 2, group=4) == pytest.approx(459e12 / 90e9 / 4)
    assert min_hiding_rows(v5p, "bfloat16", 2, pairs_share=0.5) == pytest.approx(2 * 459e12 / 90e9)
    assert min_hiding_rows(Hardware.load("cpu"), "bfloat16", 2) is None


@pytest.mark.parametrize("name", hardware_names())
def test_profiles_are_written_as_they_are_read(tmp_path: Path, name: str) -> None:
    hardware = Hardware.load(name)
    figures = {key: {"value": value, "source": hardware.sources[key]} for key, value in hardware.figures.items()}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(hardware.fields() | {"figures": figures}))
    assert Hardware.load(str(tmp_path / "mine.yaml")) == hardware


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("kind: tpu\ntorus_dims: 2\nhost: [2, 2, 1]\n", "3 in host"),
        ("kind: tpu\ntorus_dims: 3\nslices: [2x2]\n", "2 in slices"),
        ("kind: tpu\nslices: [2x]\n", "a list of shapes"),
        ("kind: cpu\nfigures: {hbm_bytes: 3}\n", "must be a positive number"),
        ("kind: cpu\nfigures: {hbm_bytes: {value: -1, source: x}}\n", "must be a positive number"),
        ("kind: cpu\nfigures: {hbm_bytes: {value: 8e9, source: x}}\n", "YAML reads 8e9 as text. Give it a point"),
        ("kind: cpu\nfigures: {hbm_bytes: {value: 1}}\n", "no source"),
        ("kind: cpu\nfigures: {hbm_byts: {value: 1, source: x}}\n", "Did you mean hbm_bytes"),
        ("kind: gpu\ndevice_kinds: [x]\ncompiler: {compute_capability: 9}\n", "with a dot, such as 9.0"),
        ("kind: gpu\ndevice_kinds: [x]\ncompiler: {core_count: many}\n", "a positive number"),
        ("kind: gpu\ndevice_kinds: []\ncompiler: {compute_capability: '9.0'}\n", "no device_kinds"),
        ("kind: gpu\nlinks_of: h10\n", "machine in links_of .* Did you mean h100"),
        ("kind: vax\n", "must be one of cpu, tpu, gpu"),
        ("knd: cpu\nkind: cpu\n", "Did you mean kind"),
    ],
)
def test_profiles_that_are_refused(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(BadInput, match=why):
        Hardware.load(str(tmp_path / "mine.yaml"))


def test_a_hop_within_a_chip_has_the_rate_of_the_chip() -> None:
    hardware = Hardware.load("tpu7x")
    chip, link = (hardware.figures[f"{name}_bytes_per_s_one_way"] for name in ("chip", "link"))
    hops = place_mesh(parse_target("tpu7x:2x2x1"), (("ring", 8),)).hop_costs["ring"]
    assert sorted(hops.bytes_per_s[0].tolist()) == [link] * 4 + [chip] * 4
    assert (hops.latency_s == hardware.figures["hop_latency_s"]).all()
