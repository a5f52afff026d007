"""All workloads of a run in one matrix: lengths down; passes, models and targets across. A cell has the answer, its
gain and its method, and links to the details."""

from collections.abc import Sequence
from dataclasses import replace

from stripectl.core.lengths import format_length
from stripectl.core.model import STEP_FIELDS
from stripectl.core.workload import Workload
from stripectl.reporters.html.charts import PageContext
from stripectl.results.labels import heads_label, workload_label
from stripectl.results.recommendation import Recommendation
from stripectl.util.units import duration, times

MAX_COLUMNS = 12  # of the matrix, which scrolls sideways where they do not fit
MAX_DETAILS = 25  # workloads with details; for the others the matrix has the answer


def workload_matrix(found: Sequence[Recommendation]) -> PageContext | None:
    """The matrix of recommendations, the main workload of the run first; None where there is only one."""
    if len(found) < 2:
        return None
    works = [each.workload for each in found]
    lengths = [f"{format_length(work.seq_len)} tokens" for work in works]
    shapes = shape_labels(works, [str(each.target) for each in found])
    passes = [work.passes for work in works]
    one_pass = len(set(passes)) == 1 and any(shapes)
    across = shapes if one_pass else [_joined(*each) for each in zip(shapes, passes, strict=True)]
    by_length = list(zip(lengths, across, strict=True))
    by_shape = list(zip((_joined(*each) for each in zip(lengths, shapes, strict=True)), passes, strict=True))
    narrow = [each for each in (by_length, by_shape) if len({name for _, name in each}) <= MAX_COLUMNS]
    places = min(
        narrow or [by_shape], key=lambda each: (len({row for row, _ in each}), len({name for _, name in each}))
    )
    rows: dict[str, dict[str, PageContext]] = {}
    for at in sorted(range(len(works)), key=lambda at: works[at].seq_len):
        each, (row, name) = found[at], places[at]
        rows.setdefault(row, {})[name] = {
            "names": each.names,
            "gain": times(each.gain.value) if each.gain else None,
            "time": duration(each.median_s),
            "method": each.method,
            "anchor": workload_anchor(at) if at < MAX_DETAILS else None,
            "chosen": at == 0,
        }
    columns = sorted({name for cells in rows.values() for name in cells})
    return {
        "columns": columns,
        "rows": [{"length": row, "cells": [cells.get(name) for name in columns]} for row, cells in rows.items()],
    }


def workload_anchor(at: int) -> str:
    """The name of a workload's details in the page."""
    return f"w{at}"


def shape_labels(works: Sequence[Workload], targets: Sequence[str]) -> list[str]:
    """The label that distinguishes each workload from others of its length and pass: model or shape, and target."""
    models = [f"model {work.model}" if work.model else heads_label(work) for work in works]
    whole = [workload_label(replace(work, seq_len=works[0].seq_len)) for work in works]
    same_shape = len({work.without("seq_len", "passes", *STEP_FIELDS) for work in works}) == 1
    places = targets if len(set(targets)) > 1 else [""] * len(works)
    for names in ([""] * len(works) if same_shape else models, whole):
        labels = [_joined(*each) for each in zip(names, places, strict=True)]
        keys = {(work.seq_len, work.passes, label) for work, label in zip(works, labels, strict=True)}
        if len(keys) == len(works):
            break
    return labels


def _joined(*words: str) -> str:
    return ", ".join(filter(None, words))
