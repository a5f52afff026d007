"""Training speed-ups compared with the striped attention paper's (Brandon et al. 2023, tables 2 to 4,
`profiles/published/striped-attention.csv`).

Each row is a machine, a model, a mesh of `mp` devices along heads and `sp` along the sequence, and a length; the
speed-up compares striped with the contiguous ring.
"""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from typing import Literal, NamedTuple

from stripectl.core.bounds import layer_speedup, ring_work
from stripectl.core.layout import MASKS, Tile, layouts
from stripectl.core.model import Model
from stripectl.core.workload import STEP
from stripectl.errors import BadInput
from stripectl.models.model_files import load_model
from stripectl.results.measurement import Measurement
from stripectl.util.files import table_rows

MATRICES = {"paper": 2, "swiglu": 3}  # of a feed-forward
HARDWARE = {"A100": "a100", "TPUv3": "v3", "TPUv4": "v4"}
ATTENTION_COST = {"A100": 2.0}  # an attention FLOP in TensorFloat-32 over a dense FLOP in bfloat16; elsewhere 1


class PublishedComparison(NamedTuple):
    """A published row and this run's result for it; speed-ups of striped over contiguous."""

    hardware: str
    model: str
    mesh: str
    seq_len: int
    tms: float
    bound: float | None  # of a layer, in whole tiles
    published: float | None
    ours: float
    method: str

    @property
    def error(self) -> float | None:
        """The relative difference of this run's speed-up from the measured one."""
        return self.ours / self.published - 1 if self.published else None


def theoretical_max_speedup(
    *,
    model: str | Model,
    seq_len: int,
    ring: int,
    attention_cost: float = 1.0,
    mlp: Literal["paper", "swiglu"] = "paper",
) -> float:
    """The paper's Theoretical Maximum Speedup (TMS) of striped over contiguous ring attention for a whole layer.

    Args:
        model: a profile's name, or a Model.
        seq_len: tokens of the whole sequence.
        ring: devices of the ring.
        attention_cost: time of an attention FLOP divided by the time of a dense FLOP: 2 on A100 (TensorFloat-32 against
            bfloat16), 1 on TPU.
        mlp: "paper" counts two feed-forward matrices, as the paper does; "swiglu" counts three.

    Raises:
        BadInput: the model is unknown, or the sequence is shorter than the ring.
    """
    if ring < 1 or seq_len < ring or mlp not in MATRICES:
        raise BadInput(
            f"a ring of {ring} cannot hold {seq_len} tokens with mlp={mlp!r}: 1 <= ring <= seq_len, paper or swiglu."
        )
    sizes = model if isinstance(model, Model) else load_model(model)
    paths = (
        ring_work(layouts[name], ring, seq_len // ring, MASKS["causal"], Tile(seq_len, seq_len)).critical_pairs
        for name in ("contiguous", "striped")
    )
    slow, fast = paths
    return layer_speedup(sizes, seq_len, ring, (slow, fast), attention_cost, MATRICES[mlp])


@cache
def published_rows() -> dict[tuple[str, str, int, int, int], tuple[float, float | None]]:
    """(TMS, measured speed-up) by (hardware, model, tensor, ring, tokens); not every row was measured."""
    return {
        (HARDWARE[row["hw"]], row["model"].lower(), int(row["mp"]), int(row["sp"]), int(row["n_seq"])): (
            theoretical_max_speedup(
                model=row["model"].lower(),
                seq_len=int(row["n_seq"]),
                ring=int(row["sp"]),
                attention_cost=ATTENTION_COST.get(row["hw"], 1.0),
            ),
            float(row["speedup_measured"]) if row["speedup_measured"] else None,
        )
        for row in table_rows("published/striped-attention")
    }


def published_comparisons(measurements: Iterable[Measurement]) -> list[PublishedComparison]:
    """Every striped training step of a published row whose contiguous step, on the same mesh, was timed by the same
    method."""
    steps = [m for m in measurements if m.workload.passes == STEP and m.median_s]
    timed = {(m.plan, m.workload, m.target, m.method): m.median_s or 0.0 for m in steps}
    found = list[PublishedComparison]()
    for m in steps:
        plan, work, hardware = m.plan, m.workload, m.target.hardware
        tensor, ring = plan.size("tensor"), plan.size("ring")
        known = published_rows().get((hardware, work.model or "", tensor, ring, work.seq_len))
        slow_s = timed.get((replace(plan, layout="contiguous"), work, m.target, m.method))
        if known and slow_s and m.median_s and plan.layout == "striped" and plan.devices == tensor * ring:
            mesh, bound = f"ring={ring},tensor={tensor}", m.bound and m.bound.layer
            what = hardware, work.model or "", mesh, work.seq_len
            found.append(PublishedComparison(*what, known[0], bound, known[1], slow_s / m.median_s, m.method))
    return found


def error_sentence(found: Sequence[PublishedComparison]) -> str:
    """The error over all rows that the paper measured; empty where it measured none."""
    errors = [each.error for each in found if each.error is not None]
    if not errors:
        return ""
    ends = f"from {min(errors):+.0%} to {max(errors):+.0%} over {len(errors)} rows"
    return f"off by {statistics.median(errors):+.0%} at the median, {ends}"
