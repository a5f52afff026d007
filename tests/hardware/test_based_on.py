"""Machines that are based on another machine: they take its tables and all that their files do not give."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

import stripectl
from stripectl.analysis.accuracy.attention import known_error
from stripectl.analysis.cost_sentences import cost_sentences
from stripectl.analysis.plausibility import sending_s
from stripectl.cli.list import hardware_summary
from stripectl.compile.toolchain import target_config, topology_arguments
from stripectl.costs.shape import TileShape
from stripectl.costs.sources.entries import on_device
from stripectl.costs.sources.table import clock_ratio, table_of
from stripectl.errors import BadInput
from stripectl.hardware.profile import MAX_BASES, Hardware, hardware_names
from stripectl.hardware.profile_fields import ACHIEVABLE
from stripectl.hardware.target import parse_target, target_of
from stripectl.measure.machine_rates import save_profile
from stripectl.reporters.terminal.topology import topology_header
from stripectl.results.cost_source import CostOrigin
from stripectl.results.measurement import Measurement
from stripectl.util.files import data_folder, profile_names

DEVICES = 8
LINKS = ("link_bytes_per_s_one_way", "chip_bytes_per_s_one_way", "network_bytes_per_s_one_way")


def written(folder: Path, content: Mapping[str, Any], name: str = "mine") -> str:
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(dict(content)))
    return str(folder / f"{name}.yaml")


def figure(value: float) -> dict[str, Any]:
    return {"value": value, "source": "assumed"}


def shipped_content(name: str) -> dict[str, Any]:
    return yaml.safe_load((data_folder("profiles") / "hardware" / f"{name}.yaml").read_text())


def simulated(machine: str, hardware: str | None, passes: str) -> list[Measurement]:
    """Rings and gathers with the kernel of the machine."""
    target = target_of(Hardware.load(machine), DEVICES)
    kernel = target.hardware.kernel
    return stripectl.bench(
        seqlen="32k",
        **{"target": str(target), "hardware": hardware, "pass_": passes, "kernel": kernel},
        **{"scheme": ["ring", "all_gather"], "layout": ["contiguous"]},
        **{"method": "simulated", "progress": False},
    ).measurements


@pytest.mark.parametrize("name", hardware_names())
def test_a_file_with_a_base_alone_is_the_base_under_another_name(tmp_path: Path, name: str) -> None:
    for content in ({}, shipped_content(name)):
        mine, base = Hardware.load(written(tmp_path, content | {"based_on": name})), Hardware.load(name)
        assert (mine.name, mine.based_on, mine.tables_of) == ("mine", base.tables_of, base.tables_of)
        assert replace(mine, name=name, based_on=base.based_on) == base
        assert ("tables of " in hardware_summary(mine)) == (base.tables_of in profile_names("kernels"))
        assert hardware_summary(mine) == hardware_summary(base)


@pytest.mark.parametrize("passes", ["forward", "forward-backward"])
@pytest.mark.parametrize("name", profile_names("kernels"))
def test_copies_give_equal_figures_and_slower_links_no_faster_plan(tmp_path: Path, name: str, passes: str) -> None:
    base = Hardware.load(name)
    halved = {link: figure(base.figures[link] / 2) for link in LINKS if link in base.figures}
    copy = written(tmp_path, shipped_content(name) | {"based_on": name})
    slow = written(tmp_path, {"based_on": name, "figures": halved}, "slow")
    own, same, slower = (simulated(name, each, passes) for each in (None, copy, slow))
    assert len(own) == len(same) == len(slower) >= 2
    for m, other, late in zip(own, same, slower, strict=True):
        assert m.status == other.status == late.status == "ok" and m.median_s
        assert other.target == replace(m.target, hardware="mine", based_on=name)
        assert replace(other, target=m.target) == m
        assert m.cost_source and m.cost_source.source != CostOrigin.DATASHEET
        assert late.median_s and late.median_s >= m.median_s
        assert (late.peak_bytes, late.bytes) == (m.peak_bytes, m.bytes)
    assert any((late.median_s or 0) > (m.median_s or 0) for m, late in zip(own, slower, strict=True))


@pytest.mark.parametrize("name", profile_names("kernels"))
def test_a_slower_clock_lengthens_tiles_and_changes_nothing_else(tmp_path: Path, name: str) -> None:
    base = Hardware.load(name)
    tpu = base.kind == "tpu"
    rate = {"clock_rate_ghz": float(base.compiler.get("clock_rate_ghz", 0)) / 2}
    clock = {"figures": {"clock_hz": figure(base.figures["clock_hz"] / 2)}} if tpu else {"compiler": rate}
    slow = Hardware.load(written(tmp_path, {"based_on": name} | clock))
    table = table_of(base)
    assert table
    heads, tiles = next(iter(table.costs[base.kernel, "bfloat16", "forward"].items()))
    shape = TileShape(base.kernel, "bfloat16", heads, next(iter(tiles)), kv_heads=8)
    fast_s, slow_s = (
        on_device(found.cost, shape, each).whole_s
        for each in (base, slow)
        if (own := table_of(each)) and (found := own.entry(shape))
    )
    waits = base.figures.get("block_wait_s", 0) > 0
    assert slow_s == pytest.approx(2 * fast_s) if not waits else fast_s < slow_s < 2 * fast_s
    assert {key for key, value in slow.figures.items() if value != base.figures[key]} == (
        {"clock_hz"} if tpu else set()
    )
    assert clock_ratio(base) == 1.0


def test_a_figure_of_the_file_replaces_the_figure_of_the_base_with_its_source(tmp_path: Path) -> None:
    mine = Hardware.load(written(tmp_path, {"based_on": "v5p", "figures": {"hbm_bytes": figure(2**34)}}))
    base = Hardware.load("v5p")
    assert mine.figures == {**base.figures, "hbm_bytes": 2**34}
    assert mine.sources == {**base.sources, "hbm_bytes": "assumed"}


@pytest.mark.parametrize(("reached", "peak"), ACHIEVABLE.items())
def test_a_rate_that_is_reached_follows_its_peak(tmp_path: Path, reached: str, peak: str) -> None:
    """Otherwise a faster memory would change nothing, and a higher peak would slow tiles down."""
    for base in (each for each in map(Hardware.load, hardware_names()) if reached in each.figures):
        doubled = {peak: figure(2 * base.figures[peak])}
        mine = Hardware.load(written(tmp_path, {"based_on": base.name, "figures": doubled}))
        assert mine.figures[reached] == pytest.approx(2 * base.figures[reached])
        assert base.sources[reached] in mine.sources[reached] != base.sources[reached]
        mine = Hardware.load(written(tmp_path, {"based_on": base.name, "figures": doubled | {reached: figure(1e9)}}))
        assert mine.figures[reached] == 1e9


def test_a_chain_of_files_takes_the_tables_of_its_last_machine(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    written(tmp_path / "below", {"based_on": "v6e", "figures": {"hop_latency_s": figure(2e-6)}}, "first")
    second = written(tmp_path, {"based_on": "below/first.yaml", "figures": {"hbm_bytes": figure(2**33)}}, "second")
    mine = Hardware.load(second)
    assert (mine.name, mine.tables_of) == ("second", "v6e")
    assert (mine.figures["hop_latency_s"], mine.figures["hbm_bytes"]) == (2e-6, 2**33)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ({"based_on": "v5q"}, "unknown machine in based_on .*Did you mean v5p"),
        ({"based_on": "mine.yaml"}, "its based_on leads back to it"),
        ({"based_on": "other.yaml"}, "its based_on leads back to it"),
        ({"based_on": "absent.yaml"}, "cannot read the hardware profile .*absent.yaml"),
        ({"based_on": "v5p", "kind": "gpu"}, "is a gpu, but its base v5p is a tpu"),
        ({"based_on": 5}, "must be the name of a machine or the path of a file"),
        ({"based_on": "long0.yaml"}, f"leads through more than {MAX_BASES} files"),
    ],
)
def test_bases_that_are_refused(tmp_path: Path, content: dict[str, Any], why: str) -> None:
    written(tmp_path, {"based_on": "mine.yaml"}, "other")
    for at in range(MAX_BASES):
        written(tmp_path, {"based_on": f"long{at + 1}.yaml"}, f"long{at}")
    with pytest.raises(BadInput, match=why):
        Hardware.load(written(tmp_path, content))


def test_a_file_without_a_base_says_where_its_tiles_come_from(tmp_path: Path) -> None:
    content = shipped_content("v5p")
    lines = {
        name: cost_sentences(simulated("v5p", written(tmp_path, content, name), "forward")) for name in ("x", "v5p")
    }
    expected = "tiles of x come from its datasheet because no table has this name. Try based_on: NAME in its file"
    assert lines["x"][0].startswith(expected) and lines["x"][1].startswith("tiles from the datasheet")
    assert not any("based_on" in line for line in lines["v5p"]) and "profiles/kernels/v5p.yaml" in lines["v5p"][0]
    for name, said in (("x", [f"tables   none: {lines['x'][0]}"]), ("v5p", [])):
        hardware = Hardware.load(str(tmp_path / f"{name}.yaml"))
        assert [line for line in topology_header(target_of(hardware, 8), 0) if line.startswith("tables")] == said
    based = Hardware.load(written(tmp_path, {"based_on": "v5p"}))
    assert "tables   of v5p, on which mine is based" in topology_header(target_of(based, 8), 0)


def test_a_run_names_the_base_for_readers_without_the_file(tmp_path: Path) -> None:
    fast = {name: figure(rate * 100) for name, rate in Hardware.load("v5p").figures.items() if name in LINKS}
    made = simulated("v5p", written(tmp_path, {"based_on": "v5p", "figures": fast}), "forward")[0]
    content = json.loads(json.dumps(made.to_json()))
    (tmp_path / "mine.yaml").unlink()
    read = Measurement.from_json(content)
    assert (content["target"], content["based_on"]) == (str(made.target), "v5p")
    assert read.target == made.target and read.target.kind == "tpu"
    assert read.target.load().hardware.name == "mine" and read.target.load().devices == DEVICES
    assert known_error(read.target.tables_of, "tokamax", read.workload) == known_error("v5p", "tokamax", read.workload)
    shipped = Hardware.load("v5p").links_bytes_per_s_one_way
    assert shipped and sending_s(read) == sum((made.bytes or {}).values()) / (100 * shipped)
    unknown = Measurement.from_json(content | {"based_on": "v99"})
    assert unknown.target.machine is None and unknown.target.kind == "cpu"
    with pytest.raises(TypeError):
        Measurement.from_json(content | {"based_on": 7})


def test_compilers_and_clouds_know_a_machine_by_its_base(tmp_path: Path) -> None:
    mine = Hardware.load(written(tmp_path, {"based_on": "v5p", "figures": {"hbm_bytes": figure(2**34)}}))
    by_base, by_name = (parse_target(f"{name}:2x2x4", mine) for name in ("v5p", "mine"))
    assert by_base == by_name and str(by_name) == "mine:2x2x4"
    assert topology_arguments(by_base) == topology_arguments(parse_target("v5p:2x2x4"))
    assert by_base.cloud_name == parse_target("v5p:2x2x4").cloud_name
    smaller = Hardware.load(written(tmp_path, {"based_on": "h100", "figures": {"hbm_bytes": figure(2**34)}}))
    assert f"device_memory_size: {2**34} " in topology_arguments(parse_target("h100:8", smaller))["target_config"]


@pytest.mark.parametrize("name", hardware_names())
def test_a_measured_profile_is_based_on_the_machine_that_is_known(tmp_path: Path, name: str) -> None:
    path = tmp_path / "measured.yaml"
    known = save_profile(Hardware.load(name), {"hop_latency_s": 1e-6}, path)
    assert yaml.safe_load(path.read_text())["based_on"] == known.tables_of == Hardware.load(name).tables_of
    bare = Hardware.from_mapping(Path("NVIDIA X"), {"name": "gpu", "kind": "gpu"})
    save_profile(bare, {"hop_latency_s": 1e-6}, path)
    assert not yaml.safe_load(path.read_text())["based_on"]


@pytest.mark.parametrize(("name", "base"), [("h800", "h100"), ("a800", "a100"), ("h100-96gb", "h100")])
def test_a_machine_that_ships_and_has_a_base_keeps_its_own_figures(name: str, base: str) -> None:
    """In a file of a run too, whose target names it."""
    target, other = parse_target(f"{name}:8"), Hardware.load(base)
    hardware = target.hardware
    assert (hardware.based_on, hardware.tables_of) == (base, base) and hardware.compiler["core_count"]
    assert target.name.machine == hardware and target.name.load() == target
    differ = {key for key, value in hardware.figures.items() if other.figures.get(key) != value}
    assert differ and not differ & {"matmul_flops_per_s_bfloat16", "achievable_flops_per_s_bfloat16"}
    assert clock_ratio(hardware) == 1.0 and target_config(hardware).count(hardware.device_kinds[0]) == 1


def test_a_file_with_the_name_of_a_machine_and_another_base_is_known_by_its_base(tmp_path: Path) -> None:
    mine = Hardware.load(written(tmp_path, {"based_on": "v6e"}, "v5p"))
    assert parse_target("v5p:2x2", mine).name.machine == Hardware.load("v6e")
