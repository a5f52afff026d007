"""The memory of a TPU core that tiles take, beside the compiler's own figures (benchmarks/tile_memory.json)."""

import itertools
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

import pytest

from benchmarks.tile_memory import KV_HEADS, ROWS, Row, records, sizes_of
from stripectl.core.kernel import kernels
from stripectl.core.plan import parse_plan
from stripectl.core.workload import Workload
from stripectl.costs.core_memory import limit_bytes, needed_bytes
from stripectl.hardware.profile import Hardware

MIB = 2**20
UNDER, OVER = 0.06, 0.26  # the error of the model where a tile takes two thirds to three halves of the limit


def needs() -> Iterator[tuple[Row, float]]:
    """A row of each tile and pass, and the MiB of the kernel that takes most."""
    found = defaultdict[tuple[object, ...], list[Row]](list)
    for row in records():
        found[row.machine, row.kernel, row.passes, row.heads, row.group, row.tile].append(row)
    for rows in found.values():
        yield rows[0], max(row.mib or row.blocks_mib for row in rows)


def predicted_mib(row: Row) -> float:
    head, v_head = sizes_of(row.heads)
    work = Workload(seq_len=2 * ROWS, heads=KV_HEADS * row.group, kv_heads=KV_HEADS, head_dim=head, v_head_dim=v_head)
    plan = parse_plan(f"ring/striped/{row.kernel}@ring=2,tile={row.tile}")
    needed = needed_bytes(replace(work, passes="forward-backward"), plan, row.passes, Hardware.load(row.machine))
    assert needed
    return needed / MIB


CASES = [
    pytest.param(row, mib, id=f"{row.machine}-{row.kernel}-{row.passes}-{row.heads}-{row.group}-{row.tile}")
    for row, mib in needs()
]


@pytest.mark.parametrize(("row", "mib"), CASES)
def test_a_tile_fits_where_the_compiler_says_so(row: Row, mib: float) -> None:
    limit = limit_bytes(kernels[row.kernel], Hardware.load(row.machine), {})
    assert limit and (predicted_mib(row) <= limit / MIB) == (mib <= limit / MIB)


def test_the_memory_of_tiles_that_nearly_fit_is_near_the_compilers_figure() -> None:
    """The model is for the largest of all machines, so that it errs upwards."""
    errors = list[float]()
    for row, mib in needs():
        limit = limit_bytes(kernels[row.kernel], Hardware.load(row.machine), {})
        if limit and 2 / 3 < mib / (limit / MIB) < 3 / 2:
            errors.append(predicted_mib(row) / mib - 1)
    assert len(errors) > 10 and min(errors) >= -UNDER and max(errors) <= OVER


def test_memory_grows_with_the_group_forward_alone() -> None:
    """The heads of a group share a row of tiles; dQ of a group is held for fewer rows."""
    work = Workload(seq_len=2**17, heads=64, kv_heads=64, head_dim=128, passes="forward-backward")
    plan, hardware = parse_plan("ring/striped/pallas_tpu@ring=4,tile=1024"), Hardware.load("v5p")
    grouped = [replace(work, kv_heads=64 // group) for group in (1, 2, 4, 8)]
    forward, backward = (
        [needed_bytes(each, plan, passes, hardware) or 0 for each in grouped] for passes in ("forward", "backward")
    )
    assert all(a < b for a, b in itertools.pairwise(forward)) and len(set(backward[:3])) == 1
    splash = [needed_bytes(each, replace(plan, kernel="splash"), "forward", hardware) for each in grouped]
    assert len(set(splash)) == 1
