"""Notes below the tables of a terminal: their sentences are the analysis's, and the terminal adds only labels."""

import html
import sys
from pathlib import Path
from typing import Any

import pytest

import stripectl
from stripectl.analysis import notes as folder
from stripectl.analysis.note import lines_of_note, notes
from stripectl.analysis.notes.length_limit import length_limits
from stripectl.analysis.notes.memory_shortage import memory_shortages
from stripectl.analysis.notes.packing import packing_loads, packing_sentences
from stripectl.analysis.notes.pass_kv_or_q import pass_comparisons
from stripectl.reporters.terminal.footnotes import note_texts
from stripectl.results.run import Run
from tests.support.pages import markdown_of, page_of


def simulated(**options: Any) -> Run:
    return stripectl.bench(method="simulated", progress=False, **options)


def lines(name: str, run: Run) -> list[str]:
    return list(map(str, lines_of_note(name, run)))


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
    notes = lines("gathers_as_sums", simulated(scheme=scheme, target=target, pass_=passes, layout="striped"))
    assert [note[: len(expected or "")] for note in notes] == ([expected] if expected else [])


def test_a_workload_that_fits_with_no_plan_names_enough_devices() -> None:
    run = simulated(target="v5e:2x2", seqlen="4M", pass_="forward", layout="striped")
    found, alone = memory_shortages(run)  # of the four devices, and of the baseline on one of them
    assert alone.wider is None and alone.sentences.endswith("Try a shorter sequence.")
    assert found.wider and found.wider.devices > 4 and found.wider.layout == "striped"
    assert found.sentences.startswith("no plan for forward of 4M tokens fits v5e:2x2. ring/striped/")
    assert found.sentences.endswith(f"Try {found.wider.devices} devices: {found.wider} is predicted to fit.")
    assert lines("memory_shortage", run) == [f"memory  {each.sentences}" for each in (found, alone)]


def test_packed_documents_load_zigzag_less_evenly_than_stripes() -> None:
    run = simulated(target="v5e:4x4", seqlen="256k", documents="4k,60k,16k", pass_="forward", layout="all")
    (load,) = packing_loads(run)
    assert list(load.ratios.values()) == sorted(load.ratios.values()) and min(load.ratios.values()) >= 1
    assert next(iter(load.ratios)) == "ring/striped/xla@ring=16"
    (sentence,) = packing_sentences(run)
    assert sentence.startswith("tiles of the busiest device over the mean: 1.0")
    assert lines("packing", run) == [f"packing {sentence}"]


def test_queries_or_keys_by_the_published_rule_and_here() -> None:
    asked = {"target": "v4:2x2x4", "seqlen": "128k", "query_len": "4k", "scheme": "pass_kv,pass_q"}
    run = simulated(pass_="forward", layout="striped", **asked)
    (found,) = pass_comparisons(run)
    assert (found.pass_kv.plan.scheme, found.pass_q.plan.scheme) == ("pass_kv", "pass_q")
    assert found.rule.flops_per_s and found.rule.bytes_per_s and found.rule.miss_rate == 1 / 32
    assert found.sentence.startswith(f"{found.rule.scheme} by arXiv:2411.01783, Algorithm 1: KV cache miss rate 0.031")
    assert lines("pass_kv_or_q", run) == [f"rule    {found.sentence}"]


def test_the_longest_sequence_is_beside_the_formulas() -> None:
    run = simulated(target="v5e:2x2", seqlen="max", pass_="forward", layout="striped")
    (found,) = length_limits(run)
    length = found.measurement.workload.seq_len
    assert found.refused > length and found.answer.endswith(f" tokens ({length}), {length // 4} per device")
    assert list(found.formulas)[-1] == "ring attention" and len(found.notes) == 3
    assert found.notes[1] == "it needs more than 97% of a device's memory, which is too close to tell"
    first, *others = lines("length_limit", run)
    assert first == f"longest {found.answer}: {found.measurement.plan} forward"
    assert others == [f"        {note}" for note in found.notes]


NOTE = """from stripectl.analysis.note import Note

note = Note(label="plans", find=lambda run: [f"{len(run.results)} plans"], order=0)
"""
BROKEN = """from stripectl.analysis.note import Note


def find(run):
    return [run.nonsense]


note = Note(label="broken", find=find)
"""


def test_a_note_is_one_file_that_every_reporter_draws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A note that fails, or cannot be loaded, says so and hides no other."""
    for name, text in {"counted": NOTE, "broken": BROKEN, "unloadable": "1 / 0"}.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.setattr(folder, "__path__", [*folder.__path__, str(tmp_path)])
    try:
        run = simulated(target="v5e:2x2", seqlen="64k", pass_="forward", layout="striped")
        shown, page, comment = list(map(str, note_texts(run, run))), page_of(run), markdown_of([run])
    finally:
        for name in ("counted", "broken"):
            notes._cache.pop(name, None)
            sys.modules.pop(f"{folder.__name__}.{name}", None)
    failed = "the note broken failed: AttributeError: 'Run' object has no attribute 'nonsense', at "
    last = "note    unloadable cannot be loaded: ZeroDivisionError: division by zero, at "
    assert shown[0] == f"plans   {len(run.measurements)} plans" and shown[-1].startswith(last)
    assert any(line.startswith(f"broken  {failed}") and line.endswith("/broken.py:5") for line in shown)
    for written in (page, comment):
        words = " ".join(html.unescape(written).split())
        assert f"plans {len(run.measurements)} plans" in words and "the note broken failed: AttributeError" in words
