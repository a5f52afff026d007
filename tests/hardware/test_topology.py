"""Targets: their names, their shapes, and the order of their devices beside what the TPU compiler says."""

import csv
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from stripectl.errors import BadInput
from stripectl.hardware.profile import Hardware, format_shape, hardware_names
from stripectl.hardware.target import Target, parse_target, read_target, target_of

TABLE = (Path(__file__).parents[1] / "data" / "tpu_slices.tsv").read_text()
SOLD = list(csv.DictReader(TABLE.splitlines(), delimiter="\t"))
DESCRIBED = ["v3:2x2", "v3:4x4", "v4:2x2x4", "v5e:4x4", "v5e:1x8", "v5p:2x2x2", "v5p:4x4x4", "v6e:2x4", "v6e:8x16"]
DESCRIBED += ["tpu7x:2x2x1", "tpu7x:1x1x1", "tpu7x:2x2x4", "2*v5e:4x4", "2*tpu7x:2x2x2", "v5e:1x1"]
DESCRIBE = """
import json, sys
from jax.experimental.topologies import get_topology_desc
said = []
for arguments in json.load(sys.stdin):
    lists = ("chips_per_host_bounds", "wrap")
    devices = get_topology_desc(**{k: tuple(v) if k in lists else v for k, v in arguments.items()}).devices
    where = lambda d: [getattr(d, "slice_index", 0), list(d.coords), d.core_on_chip, d.process_index, d.device_kind]
    said.append(list(map(where, devices)))
print("said", json.dumps(said))
"""


def test_all_slices_that_the_cloud_sells() -> None:
    assert len(SOLD) == 223
    for row in SOLD:
        target = parse_target(row["name"])
        wrap = "".join("FT"[each] for each in target.wrap).ljust(3, "F")
        found = (format_shape(target.shape), target.devices, wrap, target.hosts)
        assert found == (row["shape"], int(row["devices"]), row["wrap"], int(row["processes"])), row
        assert target.cloud_name == row["name"]
        assert parse_target(str(target)) == target


@pytest.mark.parametrize("text", ["cpu:2", "h100:8", "v5e:4x4", "v4:2x2x4", "v5e:1x8", "v5p:2x2x6", "2*v5e:4x4"])
def test_targets_print_as_they_are_written(text: str) -> None:
    assert str(parse_target(text)) == text
    assert read_target(text).hardware == parse_target(text).hardware.name


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("v5e:16", "v5e:4x4"),
        ("v5p:1", "v5p:1x1x1"),
        ("h100:16", "2*h100:8"),
        ("v5litepod-16", "v5e:4x4"),
        ("2*v4-32", "2*v4:2x2x4"),
        ("v3-8", "v3:2x2"),
    ],
)
def test_other_names_of_a_target(text: str, printed: str) -> None:
    assert str(parse_target(text)) == printed


@pytest.mark.parametrize(
    ("text", "why"),
    [
        *(
            (text, "is not a target")
            for text in ("", "cpu", "cpu:x", "v4:99999999", "v5e:", "0*v5e:4x4", "2*", "v5e:4x")
        ),
        ("cpu:0", "0 chips"),
        ("h100:2x4", "Try h100:8"),
        ("h100:12", "Try h100:8 or 2[*]h100:8"),
        ("h100-8", "Try h100:8"),
        ("2*cpu:2", "Try cpu:4"),
        ("nothing:3", "unknown hardware"),
        ("v5e:3x5", "whole hosts. Nearest: v5e:4x4 .v5e-16., v5e:2x4"),
        ("v5e:2x2x2", "has 2 axes"),
        ("v5e:16x32", "a pod has only 16x16 chips"),
        ("v5p:2x2x32", "a pod has only 16x20x28"),
        ("v5p:2x0x2", "at least one chip"),
        ("v5p:12", "name a shape. Nearest: v5p:2x2x4 .v5p-32."),
        ("v5e-12", "Nearest: v5e:4x4 .v5e-16."),
        ("9999*v5e:4x4", "not 1 to"),
    ],
)
def test_targets_that_are_refused(text: str, why: str) -> None:
    with pytest.raises(BadInput, match=why):
        parse_target(text)


def test_a_count_of_devices_becomes_what_they_come_in() -> None:
    v3, h100 = Hardware.load("v3"), Hardware.load("h100")
    assert [str(target_of(v3, 8)), str(target_of(v3, 6))] == ["v3:2x2", "v3:3"]
    assert [str(target_of(h100, count)) for count in (4, 8, 32, 12)] == ["h100:4", "h100:8", "4*h100:8", "h100:12"]


@pytest.mark.parametrize("text", ["cpu:3", "2*h100:8", "v5e:1x8", "v3:4x4", "2*tpu7x:2x2x2", "v5p:2x2x6"])
def test_positions_are_every_device_once_host_by_host(text: str) -> None:
    target = parse_target(text)
    assert len({(p.slice, p.coords, p.core) for p in target.positions}) == len(target.positions) == target.devices
    hosts = [position.host for position in target.positions]
    assert hosts == sorted(hosts) and set(hosts) == set(range(target.hosts))


@pytest.mark.parametrize("name", [name for name in hardware_names() if Hardware.load(name).kind == "tpu"])
def test_tpu_profiles_describe_their_slices(name: str) -> None:
    hardware = Hardware.load(name)
    assert len(hardware.host) == len(hardware.pod) == hardware.torus_dims
    assert len(set(hardware.slices)) == len(hardware.slices)
    assert all(str(parse_target(str(Target(hardware, shape)))) for shape in hardware.slices)


def test_positions_are_in_the_order_of_jax() -> None:
    """Asked of the TPU compiler in a process of its own: one that owns a TPU would abort."""
    if importlib.util.find_spec("libtpu") is None:
        pytest.skip("libtpu is not installed: pip install .[tpu]")
    targets = [parse_target(text) for text in DESCRIBED]
    asked = json.dumps([target.topology_arguments for target in targets])
    # Without the last, libtpu refuses to be loaded where another process has it, another test, say.
    given = {"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "true"}
    command, environment = [sys.executable, "-c", DESCRIBE], {**os.environ, **given}
    done = subprocess.run(command, input=asked, env=environment, capture_output=True, text=True, timeout=120)
    said = [line for line in done.stdout.splitlines() if line.startswith("said ")]
    assert said, done.stderr
    for target, devices in zip(targets, json.loads(said[0].removeprefix("said ")), strict=True):
        ours = [(p.slice, (*p.coords, 0, 0)[:3], p.core, p.host) for p in target.positions]
        assert ours == [(slice, tuple(coords), core, host) for slice, coords, core, host, _ in devices], str(target)
        assert devices[0][-1] in target.hardware.device_kinds


def test_only_tpu_slices_are_described() -> None:
    with pytest.raises(BadInput, match="not a TPU slice"):
        _ = parse_target("h100:8").topology_arguments


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("tpu8t:60", r"it is not known which are sold; name a shape\. Nearest: tpu8t:4x4x4\."),
        ("tpu8t:3x3x3", r"a host has 2x2x1 chips.* Nearest: tpu8t:2x4x4\."),
        ("tpu8t-64", r"not the name of a slice\. Try tpu8t:4x4x4\."),
        ("tpu8t:24x24x24", r"a pod has only 20x20x24 chips\. Nearest: tpu8t:20x20x24\."),
        ("tpu8i:4x4", r"its trays of 2x2 chips are joined in a Boardfly.* Nearest: tpu8i:2x2\."),
    ],
)
def test_machines_of_which_no_sizes_are_sold_have_shapes(text: str, why: str) -> None:
    with pytest.raises(BadInput, match=why):
        parse_target(text)


def test_a_count_of_chips_of_which_no_sizes_are_sold_becomes_the_most_even_shape() -> None:
    tpu8t, tpu8i = Hardware.load("tpu8t"), Hardware.load("tpu8i")
    assert [str(target_of(tpu8t, count)) for count in (1, 8, 64)] == ["tpu8t:1x1x1", "tpu8t:2x2x2", "tpu8t:4x4x4"]
    assert [str(target_of(tpu8i, count)) for count in (2, 8)] == ["tpu8i:1x1", "tpu8i:2x2"]
    assert parse_target("tpu8i:1").devices == 2 and parse_target("v8t:4x4x4").wrap == (True, True, True)
