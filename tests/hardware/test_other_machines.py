"""Machines of other makers are refused with the way to plan for them, and such a way works."""

from pathlib import Path

import pytest

import stripectl
from stripectl.errors import BadInput
from stripectl.hardware.other_machines import MAKERS
from stripectl.hardware.profile import Hardware, hardware_names
from stripectl.hardware.target import parse_target

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "hardware.md"
TITLE = "## A machine that is like no other"


@pytest.mark.parametrize(
    ("name", "maker"),
    [
        *((name, "AMD Instinct GPU") for name in ("mi300x", "MI325X", "mi355x", "amd-mi300x", "mi250")),
        *((name, "AWS Trainium or Inferentia chip") for name in ("trn2", "trainium2", "trn2.48xlarge", "inf2")),
        *((name, "Intel Gaudi accelerator") for name in ("gaudi3", "Gaudi2")),
    ],
)
def test_names_of_other_makers_are_refused_in_one_sentence_with_the_way(name: str, maker: str) -> None:
    for text in (f"{name}:8", f"2*{name}:8", name):
        with pytest.raises(BadInput, match=f"^cannot plan for '.*' because stripectl has no {maker}. Try --hardware"):
            parse_target(text)
    with pytest.raises(BadInput, match=f"stripectl has no {maker}. Try --hardware FILE"):
        Hardware.load(name)


def test_a_base_of_another_maker_is_refused_too(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("based_on: mi300x\n")
    with pytest.raises(BadInput, match="stripectl has no AMD"):
        Hardware.load(str(tmp_path / "mine.yaml"))


def test_no_machine_that_ships_is_taken_for_another_makers() -> None:
    for hardware in map(Hardware.load, hardware_names()):
        for name in (hardware.name, *hardware.aliases):
            assert parse_target(f"{name}:1").hardware == hardware


@pytest.mark.parametrize("text", ["h21:8", "v6p:4x4", "nvidia:8", "mine:8"])
def test_other_unknown_names_have_the_nearest(text: str) -> None:
    with pytest.raises(BadInput, match=r"unknown hardware in the target .* Known: a100,"):
        parse_target(text)


def test_the_file_of_the_documentation_plans_for_a_machine_of_another_maker(tmp_path: Path) -> None:
    """The page that the refusal names."""
    text = PAGE.read_text(encoding="utf-8").partition(TITLE)[2].partition("```yaml\n")[2].partition("```")[0]
    (tmp_path / "mi300x.yaml").write_text(text)
    path = str(tmp_path / "mi300x.yaml")
    assert any(maker.startswith("AMD") for maker in MAKERS.values())
    run = stripectl.bench(target="mi300x:8", hardware=path, seqlen="32k", method="simulated", progress=False)
    assert run.measurements and all(m.status == "ok" and m.median_s for m in run.measurements)
    assert {str(m.target) for m in run.measurements if m.devices > 1} == {"mi300x:8"}
