"""Tables distilled from public measurements (benchmarks/public_measurements.py): each says where it is from, and its
figures are in order."""

import csv
import re
from collections import defaultdict
from pathlib import Path

import pytest
import yaml

from stripectl.util.files import data_folder

FOLDER = data_folder("profiles") / "distilled"
FILES = sorted(FOLDER.glob("*"))
MOST_BYTES = 300_000
FACTS = {
    "table",
    "source",
    "version",
    "sha256",
    "licence",
    "date",
    "rows",
    "measured with",
    "fields",
    "left out",
    "error",
}
NUMBER = r"\d+(\.\d+)?"


def read(path: Path) -> tuple[dict, list[dict[str, str]]]:
    """The facts in a file's head, and its lines."""
    lines = path.read_text().splitlines()
    head = [line.removeprefix("# ") for line in lines if line.startswith("# ")]
    facts = dict(line.split(": ", 1) for line in head)
    return facts, list(csv.DictReader(lines[len(head) :]))


def test_size():
    assert 0 < sum(path.stat().st_size for path in FILES) <= MOST_BYTES


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_source(path: Path):
    facts, lines = read(path)
    assert facts.keys() >= FACTS
    assert re.fullmatch(r"[0-9a-f]{64}", facts["sha256"])
    assert facts["licence"].startswith("Apache-2.0")
    assert yaml.safe_load(facts["date"]).year >= 2026
    assert int(facts["rows"]) > len(lines) > 0
    assert re.fullmatch(rf"median {NUMBER} %, nine of ten {NUMBER} %, worst {NUMBER} %", facts["error"])


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_figures(path: Path):
    """Fields of figures are positive numbers, or empty where nothing was measured, and no line occurs twice."""
    seen = set()
    for line in read(path)[1]:
        figures = {name: cell for name, cell in line.items() if re.match("us|tflops", name)}
        assert figures and all(not cell or float(cell) > 0 for cell in figures.values()), line
        seen.add(tuple(cell for name, cell in line.items() if name not in figures))
    assert len(seen) == len(read(path)[1])


def test_larger_collectives_take_longer():
    curves = defaultdict(list)
    for line in read(FOLDER / "collectives.csv")[1]:
        curves[line["target"], line["operation"], line["devices"]].append((int(line["bytes"]), float(line["us"])))
    assert {target for target, *_ in curves} >= {"a100", "h100", "h200", "b200", "b300", "gb200", "gb300", "l40s"}
    for curve in curves.values():
        assert len(curve) >= 2 and curve == sorted(set(curve))
        assert [us for _, us in curve] == sorted(us for _, us in curve)
