"""Each answer for a machine names what nobody publishes about it."""

from pathlib import Path

import pytest

from stripectl.analysis.notes.unknown_of_machine import unknown_of_predicted
from stripectl.hardware.profile import Hardware
from stripectl.results.run import Run
from tests.support.command import run


@pytest.mark.parametrize(("name", "size"), [("l40s", "8"), ("tpu8i", "2x2"), ("h100", "8")])
def test_an_answer_names_what_nobody_publishes(name: str, size: str, tmp_path: Path, capsys) -> None:
    words = f"--target {name}:{size} --scheme ring --layout zigzag --seqlen 32k --method simulated --quiet"
    assert run("bench", *words.split(), "--output", str(tmp_path / "run")) == 0
    printed, unknown = " ".join(capsys.readouterr().out.split()), Hardware.load(name).unknown
    assert unknown_of_predicted(Run.load(tmp_path / "run")) == ([f"{name}: {unknown}."] if unknown else [])
    assert (f"note {name}: {unknown}." in printed) == bool(unknown)
    assert (f"{name}: {unknown}." in " ".join((tmp_path / "run" / "report.html").read_text().split())) == bool(unknown)
    assert run("topology", "--target", f"{name}:{size}") == 0
    assert ("unknown " in capsys.readouterr().out) == bool(unknown)
