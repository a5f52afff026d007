"""The table of constants in the documentation is complete and has their values."""

import ast
import importlib
import re
from pathlib import Path

import pytest

import stripectl.statistics

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "statistics.md"


def listed() -> dict[str, dict[str, float]]:
    """The values in the table, by file and name; a row without a file continues the file above it."""
    found, file = dict[str, dict[str, float]](), ""
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        names = re.findall(r"`([A-Z_]+)`", cells[1]) if len(cells) == 5 else []
        if names:
            file = cells[0].strip("`") or file
            found.setdefault(file, {}).update(zip(names, map(float, cells[2].split(", ")), strict=True))
    return found


def constants(path: Path) -> dict[str, float]:
    """The constants that a module defines."""
    module = importlib.import_module(f"stripectl.statistics.{path.stem}")
    targets = (
        each for node in ast.parse(path.read_text()).body if isinstance(node, ast.Assign) for each in node.targets
    )
    names = {name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)}
    return {name: float(getattr(module, name)) for name in names if name.isupper()}


def test_every_constant_of_a_method_is_listed_with_its_value() -> None:
    table = listed()
    for path in Path(stripectl.statistics.__path__[0]).glob("*.py"):
        assert table.get(path.name, {}) == pytest.approx(constants(path)), path.name
