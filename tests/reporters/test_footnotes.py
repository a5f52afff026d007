"""Notes below the tables of a terminal."""

import pytest

import stripectl
from stripectl.reporters.terminal.footnotes import gather_notes


@pytest.mark.parametrize(
    ("scheme", "target", "passes", "expected"),
    [
        ("all_gather", "v5p:4x4x4", "forward-backward", "note    All-gathers of all_gather over ring=64"),
        ("all_gather", "v5p:2x2x4", "forward-backward", None),
        ("ring", "v5p:4x4x4", "forward-backward", None),
        ("ring", "v5p:4x4x4", "step", "note    All-gathers of ring over ring=64"),
        ("ring", "v6e:8x8", "step", None),
    ],
)
def test_gathers_compiled_as_sums_are_named(scheme: str, target: str, passes: str, expected: str | None) -> None:
    run = stripectl.bench(scheme=scheme, target=target, pass_=passes, layout="striped", method="simulated")
    notes = [str(note) for note in gather_notes(run.measurements)]
    assert [note[: len(expected or "")] for note in notes] == ([expected] if expected else [])
