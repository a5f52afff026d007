"""The short convolution of a layer with a recurrence: each element of queries, keys and values becomes a weighted sum
of its values in the last d_conv tokens, followed by SiLU (Gu and Dao 2023, arXiv:2312.00752, section 3.4).

The first rows of a run of tokens need a halo: rows at the end of the run before, one fewer than d_conv. One shift
brings the halo of queries, keys and values together; the gradient of the halo travels back.
"""

from collections.abc import Sequence

from stripectl.core.comm import Array, Shifts
from stripectl.core.halo import of_adjacent_run
from stripectl.core.layout import layouts
from stripectl.core.layout_switch import BASE
from stripectl.core.mesh import SEQUENCE_AXES
from stripectl.core.ops import Ops
from stripectl.core.plan import Plan


def short_convolution(
    arrays: Sequence[Array], weights: Sequence[Array], plan: Plan, ops: Ops, comm: Shifts
) -> Sequence[Array]:
    """Arrays (b, n, t, h) after their convolutions with weights (n, h, d_conv)."""
    count, halo = layouts[plan.layout].pieces if plan.shards > 1 else 1, weights[0].shape[-1] - 1
    split = [ops.split_rows(x, count) for x in arrays]
    runs = [[parts[at] for parts in split] for at in range(count)]
    ends = [[ops.last_rows(x, halo) for x in run] for run in runs]
    before = halos([ops.pack(end) for end in ends], plan, ops, comm)
    found = [
        [ops.convolve(*each) for each in zip(run, ops.unpack(rows, end), weights, strict=True)]
        for run, end, rows in zip(runs, ends, before, strict=True)
    ]
    return [ops.join_rows([run[at] for run in found]) for at in range(len(arrays))]


def halos(ends: Sequence[Array], plan: Plan, ops: Ops, comm: Shifts) -> list[Array]:
    """The ends of the runs of tokens before each run of this shard; zeros before the first token."""
    axis = next((axis for axis in SEQUENCE_AXES if plan.size(axis) > 1), None)
    if axis is None:
        return [ops.zeros_like(ends[0])]
    layout = layouts[plan.layout if len(ends) > 1 else BASE]
    return [
        of_adjacent_run(ends, axis, layout.adjacent_runs(run, plan.size(axis)), comm, "halo")
        for run in range(len(ends))
    ]
