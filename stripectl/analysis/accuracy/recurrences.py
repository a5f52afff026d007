"""Predicted chunks of recurrences on GPUs, compared with times of kernels in stages that set none of their figures: the
other numbers of heads and tokens in `profiles/distilled/recurrences.csv`, another library there, and times of
flash-linear-attention (fla) that others published (`profiles/published/recurrences.csv`), of both passes.

Times are of a kernel on one device, so the prediction is the time of its chunks and of its call. fla's backward pass
is given the inverses of its scores, which the predicted pass computes again (a twelfth of its memory traffic).
"""

from functools import cache
from typing import NamedTuple

import numpy as np

from stripectl.analysis.accuracy.ratio_error import RatioError, ratio_error
from stripectl.core.layout import Tile
from stripectl.core.lengths import format_length
from stripectl.core.mask_tiles import TileCount
from stripectl.core.plan import Plan
from stripectl.core.workload import Workload
from stripectl.costs.source_order import cost_model
from stripectl.costs.sources.measured_stages import (
    CHUNK,
    FEW_HEADS,
    FEW_TOKENS,
    LIBRARIES,
    MANY_HEADS,
    MEASURED,
    SHARED_KEYS,
    SOURCE,
    measured_calls,
)
from stripectl.hardware.profile import Hardware, hardware_names
from stripectl.util.files import table_rows

IN_STAGES = (*MEASURED.values(), ("gdn", "sglang"))  # kernels and libraries of the distilled table


class MeasuredChunks(NamedTuple):
    """A measured time of a recurrence on one device."""

    source: str
    hardware: str
    kernel: str
    recurrence: str
    passes: str
    sequences: int
    tokens: int
    key_heads: int
    heads: int
    seconds: float

    @property
    def predicted_s(self) -> float:
        """Seconds of the same call, predicted."""
        workload = Workload(
            seq_len=self.tokens,
            heads=self.heads,
            kv_heads=self.heads,
            key_heads=self.key_heads,
            head_dim=128,
            batch=self.sequences,
            attention="linear",
            recurrence=self.recurrence,
            passes="forward" if self.passes == "forward" else "forward-backward",
        )
        plan = Plan("lasp2", "contiguous", "gated", mesh=(), tile=Tile(CHUNK, CHUNK))
        machine = cost_model(Hardware.load(self.hardware), workload, plan)
        cost, none = machine.forward if self.passes == "forward" else machine.backward, np.int64(0)
        chunks = TileCount(none, np.int64(self.tokens // CHUNK), none, none)
        return float(cost.seconds(chunks, self.sequences * self.heads))


class RecurrenceGroup(NamedTuple):
    """The rows of a device, a recurrence, a kernel and a pass. A constant of the device comes from other rows of the
    kernel where `same_kernel`."""

    hardware: str
    recurrence: str
    kernel: str
    passes: str
    same_kernel: bool
    error: RatioError


def recurrence_rows() -> list[MeasuredChunks]:
    """Every row that sets no figure. Sequences of a distilled row count as heads."""
    found: list[MeasuredChunks] = []
    for (gpu, recurrence, library), calls in measured_calls().items():
        if gpu not in hardware_names() or (recurrence, library) not in IN_STAGES:
            continue
        sets = {MANY_HEADS, FEW_HEADS, FEW_TOKENS} if MEASURED[recurrence][1] == library else set[tuple[int, int]]()
        shared = SHARED_KEYS if recurrence == "gdn" else 1
        found += [
            MeasuredChunks(
                *(SOURCE, gpu, LIBRARIES[library], recurrence, "forward", 1, tokens, heads // shared, heads, seconds)
            )
            for (heads, tokens), seconds in calls.items()
            if (heads, tokens) not in sets
        ]
    for row in table_rows("published/recurrences"):
        found.append(
            MeasuredChunks(
                source=row["source"],
                hardware=row["hardware"],
                kernel=row["kernel"],
                recurrence=row["recurrence"],
                passes=row["pass"],
                sequences=int(row["sequences"]),
                tokens=int(row["tokens"]),
                key_heads=int(row["key_heads"]),
                heads=int(row["heads"]),
                seconds=float(row["ms"]) / 1e3,
            )
        )
    return found


@cache
def recurrence_groups() -> list[RecurrenceGroup]:
    """The groups, in the order of their first rows."""
    groups: dict[tuple[str, str, str, str], list[MeasuredChunks]] = {}
    for each in recurrence_rows():
        groups.setdefault((each.hardware, each.recurrence, each.kernel, each.passes), []).append(each)
    return [
        RecurrenceGroup(
            *key,
            LIBRARIES[MEASURED[key[1]][1]] == key[2],
            ratio_error(
                [each.predicted_s / each.seconds for each in members],
                [f"{format_length(each.tokens)}x{each.sequences * each.heads}" for each in members],
            ),
        )
        for key, members in groups.items()
    ]
