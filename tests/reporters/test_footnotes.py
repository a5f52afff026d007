"""Notes below the tables of a terminal."""

import pytest

import stripectl
from stripectl.reporters.terminal.footnotes import gather_notes
from stripectl.results.run import Run


def simulated(**request: str) -> Run:
    return stripectl.bench(layout="striped", method="simulated", **request)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            {"scheme": "all_gather", "target": "v5p:4x4x4"},
            "note    All-gathers of all_gather over ring=64",
        ),
        ({"scheme": "all_gather", "target": "v5p:2x2x4"}, None),
        ({"scheme": "ring", "target": "v5p:4x4x4"}, None),
        (
            {"scheme": "ring", "target": "v5p:4x4x4", "pass_": "step"},
            "note    All-gathers of ring over ring=64",
        ),
        ({"scheme": "ring", "target": "v6e:8x8", "pass_": "step"}, None),
    ],
)
def test_gathers_that_are_compiled_as_sums_are_named(options: dict[str, str], expected: str | None) -> None:
    notes = [str(note) for note in gather_notes(simulated(**options).measurements)]
    assert [note[: len(expected or "")] for note in notes] == ([expected] if expected else [])
