"""Notes below the tables of a terminal: their sentences are the analysis's, and the terminal adds only labels."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from rich.text import Text

import stripectl
from stripectl.analysis.length_limit import length_limits
from stripectl.analysis.memory_shortage import memory_shortages
from stripectl.analysis.packing import packing_loads, packing_sentences
from stripectl.analysis.pass_kv_or_q import pass_comparisons
from stripectl.reporters.terminal.footnotes import (
    gather_notes,
    max_length_notes,
    memory_notes,
    packing_notes,
    pass_rule_notes,
)
from stripectl.results.measurement import Measurement


def simulated(**options: Any) -> Sequence[Measurement]:
    return stripectl.bench(method="simulated", progress=False, **options).measurements


def lines(notes: Callable[[Sequence[Measurement]], list[Text]], measurements: Sequence[Measurement]) -> list[str]:
    return [str(note) for note in notes(measurements)]


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
    notes = lines(gather_notes, simulated(scheme=scheme, target=target, pass_=passes, layout="striped"))
    assert [note[: len(expected or "")] for note in notes] == ([expected] if expected else [])


def test_a_workload_that_fits_with_no_plan_names_enough_devices() -> None:
    measurements = simulated(target="v5e:2x2", seqlen="4M", pass_="forward", layout="striped")
    found, alone = memory_shortages(measurements)  # of the four devices, and of the baseline on one of them
    assert alone.wider is None and alone.sentences.endswith("Try a shorter sequence.")
    assert found.wider and found.wider.devices > 4 and found.wider.layout == "striped"
    assert found.sentences.startswith("no plan for forward of 4M tokens fits v5e:2x2. ring/striped/")
    assert found.sentences.endswith(f"Try {found.wider.devices} devices: {found.wider} is predicted to fit.")
    assert lines(memory_notes, measurements) == [f"memory  {each.sentences}" for each in (found, alone)]


def test_packed_documents_load_zigzag_less_evenly_than_stripes() -> None:
    measurements = simulated(target="v5e:4x4", seqlen="256k", documents="4k,60k,16k", pass_="forward", layout="all")
    (load,) = packing_loads(measurements)
    assert list(load.ratios.values()) == sorted(load.ratios.values()) and min(load.ratios.values()) >= 1
    assert next(iter(load.ratios)) == "ring/striped/xla@ring=16"
    (sentence,) = packing_sentences(measurements)
    assert sentence.startswith("tiles of the busiest device over the mean: 1.0")
    assert lines(packing_notes, measurements) == [f"packing {sentence}"]


def test_queries_or_keys_by_the_published_rule_and_here() -> None:
    asked = {"target": "v4:2x2x4", "seqlen": "128k", "query_len": "4k", "scheme": "pass_kv,pass_q"}
    measurements = simulated(pass_="forward", layout="striped", **asked)
    (found,) = pass_comparisons(measurements)
    assert (found.pass_kv.plan.scheme, found.pass_q.plan.scheme) == ("pass_kv", "pass_q")
    assert found.rule.flops_per_s and found.rule.bytes_per_s and found.rule.miss_rate == 1 / 32
    assert found.sentence.startswith(f"{found.rule.scheme} by arXiv:2411.01783, Algorithm 1: KV cache miss rate 0.031")
    assert lines(pass_rule_notes, measurements) == [f"rule    {found.sentence}"]


def test_the_longest_sequence_is_beside_the_formulas() -> None:
    measurements = simulated(target="v5e:2x2", seqlen="max", pass_="forward", layout="striped")
    (found,) = length_limits(measurements)
    length = found.measurement.workload.seq_len
    assert found.refused > length and found.answer.endswith(f" tokens ({length}), {length // 4} per device")
    assert list(found.formulas)[-1] == "ring attention" and len(found.notes) == 3
    assert found.notes[1] == "it needs more than 97% of a device's memory, which is too close to tell"
    first, *others = lines(max_length_notes, measurements)
    assert first == f"longest {found.answer}: {found.measurement.plan} forward"
    assert others == [f"        {note}" for note in found.notes]
