"""Tables distilled from public measurements (benchmarks/public_measurements.py): each says where it is from, its
figures are in order, and the fit that made them finds what is known."""

import csv
import re
from collections import defaultdict
from collections.abc import Sequence
from datetime import date
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from benchmarks.grid_fit import fit, fit_curve, interpolate
from stripectl.util.files import data_folder

FOLDER = data_folder("profiles") / "distilled"
FILES = sorted(FOLDER.iterdir())
MOST_BYTES = 300_000
FACTS = {"table", "source", "version", "sha256", "licence", "date", "rows", "between nodes", "fields", "left out"}
TARGETS = {"a100", "h100", "h200", "b200", "b300", "gb200", "gb300", "l40s", "rtx-pro-6000"}
MEASURED = {"exchanges": {"h100"}, "recurrences": TARGETS - {"a100"}}  # other tables: on all
FIGURES = re.compile(r"us|(tflops|ns)_\d+")
ROUNDING = 0.99  # of a time of three digits

Lines = list[dict[str, str]]


def read(path: Path) -> tuple[dict[str, str], Lines]:
    """The facts in a file's head, and its lines."""
    lines = path.read_text().splitlines()
    head = [line.removeprefix("# ") for line in lines if line.startswith("# ")]
    return dict(line.split(": ", 1) for line in head), list(csv.DictReader(lines[len(head) :]))


def curves(name: str, along: str, figure: str, same: Sequence[str]) -> dict[tuple[str, ...], list[tuple[float, float]]]:
    """The figures of a file along a coordinate, by the fields that stay the same."""
    found = defaultdict(list)
    for line in read(FOLDER / f"{name}.csv")[1]:
        if line[figure]:
            found[tuple(line[each] for each in same)].append((float(line[along]), float(line[figure])))
    return found


def rises(times: Sequence[float]) -> bool:
    return all(after >= ROUNDING * before for before, after in pairwise(times))


def columns(line: dict[str, str]) -> list[tuple[int, float]]:
    """The figures in the columns of a line, by the number in the name of their column."""
    return [(int(name.split("_")[1]), float(cell)) for name, cell in line.items() if FIGURES.fullmatch(name) and cell]


def test_size():
    assert {path.suffix for path in FILES} == {".csv"}
    assert sum(path.stat().st_size for path in FILES) <= MOST_BYTES


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_source(path: Path):
    facts, lines = read(path)
    assert facts.keys() >= FACTS
    assert re.fullmatch(r"[0-9a-f]{64}", facts["sha256"])
    assert facts["licence"].startswith("Apache-2.0")
    assert date.fromisoformat(facts["date"]).year >= 2026
    assert int(facts["rows"]) > len(lines) > 0
    assert re.fullmatch(r"median \d+\.\d %, nine of ten \d+\.\d %, worst \d+ %", facts["error"])
    assert {line["target"] for line in lines} == MEASURED.get(path.stem, TARGETS)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_figures(path: Path):
    """Each line has figures, all of which are positive, and no line occurs twice."""
    seen, (_, lines) = set(), read(path)
    for line in lines:
        figures = {name: float(cell) for name, cell in line.items() if FIGURES.fullmatch(name) and cell}
        assert figures and min(figures.values()) > 0, line
        seen.add(tuple(cell for name, cell in line.items() if not FIGURES.fullmatch(name)))
    assert len(seen) == len(lines)


@pytest.mark.parametrize(
    ("name", "along", "same"),
    [("collectives", "bytes", ("target", "operation", "devices")), ("exchanges", "tokens", ("operation", "nodes"))],
)
def test_larger_messages_take_longer(name: str, along: str, same: Sequence[str]):
    for curve in curves(name, along, "us", same).values():
        assert len(curve) >= 2 and curve == sorted(set(curve))
        assert rises([us for _, us in curve])


@pytest.mark.parametrize("name", ["matrices", "experts", "recurrences"])
def test_more_rows_take_longer(name: str):
    for line in read(FOLDER / f"{name}.csv")[1]:
        assert rises([size * value if name == "recurrences" else size / value for size, value in columns(line)]), line


@pytest.mark.parametrize("tokens", [512, 2048, 16384])
def test_more_queries_take_longer(tokens: int):
    same = ("target", "kernel", "library", "head_dim", "v_dim", "mask", "window")
    found = curves("attention", "query_rows", f"tflops_{tokens}", same)
    assert len(found) > len(TARGETS)
    assert all(rises([rows / rate for rows, rate in curve]) for curve in found.values())


def test_fit_finds_a_plane_among_outliers():
    """Nodes of z = 1 + 2x - y at the corners of a square, from 40 points of which 5 are far off."""
    x, y = np.random.default_rng(0).random((2, 40))
    plane = 1 + 2 * x - y
    values = plane + np.where(np.arange(40) % 8 == 0, 3, 0)
    nodes = ([0, 0.5, 1], [0, 1])
    found = fit([x, y], values, nodes)
    np.testing.assert_allclose(found, [[1, 0], [2, 1], [3, 2]], atol=0.05)
    np.testing.assert_allclose(interpolate([x, y], found, nodes), plane, atol=0.05)


def test_curve_keeps_its_knee():
    """A floor, then a line: three nodes, and a value that falls is levelled."""
    at = np.arange(9.0)
    nodes, values = fit_curve(at, np.maximum(2, at - 2), worst=0.01, most=9)
    assert (nodes.tolist(), values.tolist()) == ([0, 4, 8], [2, 2, 6])
    nodes, values = fit_curve([0, 1, 2], [0, 2, 1], worst=0, most=3)
    assert values.tolist() == [0, 1.5, 1.5]
