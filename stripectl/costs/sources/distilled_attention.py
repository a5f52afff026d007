"""Tiles of kernels that only a table knows: constants of a mechanism, fitted to calls that others measured.

A thread block computes 128 queries with all their keys, tile by tile, and its start and end take as long as some tiles.
A processor that has finished takes the next block, or the longest that is left (`waves`). A call begins with a time of
its own. So four constants tell the time of every call with heads of a size: seconds of a tile and of a call, the tiles
that a start is worth, and the order of blocks. They are fitted by least squares of relative errors, where errors above
SMALL_ERROR count less (`soft_l1`). Calls of which half are farther off than MAX_ERROR tell no cost.

Forward calls are distilled from NVIDIA's measurements of libraries (`profiles/distilled`), of which one sets the
constants of a kernel. Backward calls are published (`profiles/published`). Calls with windows have constants of their
own, for windows of about the same length.
"""

import itertools
import math
from collections.abc import Iterator
from functools import cache, lru_cache
from typing import NamedTuple

import numpy as np

from stripectl.core.kernel import kernels
from stripectl.core.layout import MASKS, UNBOUNDED, MaskBlock, Tile
from stripectl.core.plan import Plan
from stripectl.core.workload import Workload
from stripectl.costs.cost_model import CostModel
from stripectl.costs.shape import Heads, TileShape, shapes_of
from stripectl.costs.sources.entries import Entry, entry_cost_model
from stripectl.costs.sources.table import exposed_hops, table_of
from stripectl.costs.waves import blocks_of, makespan, transposed
from stripectl.errors import BadInput
from stripectl.hardware.profile import Hardware, hardware_names
from stripectl.results.cost_source import CostOrigin, TableSource
from stripectl.results.tile_cost import TileCost, Waves
from stripectl.util.files import table_rows

FORWARD, BACKWARD = "distilled/attention", "published/attention"
# Of several libraries that call a kernel, the first with rows sets its constants: the library that is named after it,
# or the library with more sizes of heads and windows.
LIBRARIES: dict[str, tuple[str, ...]] = {
    "fa3": ("vllm", "sglang"),
    "fa4": ("vllm", "sglang"),
    "flashinfer": ("sglang", "trtllm"),
    "trtllm": ("trtllm", "vllm", "sglang"),
}
BLOCK = Tile(128, 128)
STARTS = (0, 0.5, 1, 1.5, 2, 3, 4, 6, 8)  # tiles
MIN_TOKENS, MIN_ROWS = 1024, 2**15  # of a forward call, and its query rows: shorter calls show the latency of a library
WINDOW_RATIO = 2.0  # of two windows whose tiles have the same costs
SMALL_ERROR, MAX_ERROR = 0.03, 0.1  # relative, of a call and of the median
WITH_WINDOWS = "xla"  # a kernel that has windows on GPUs
ALIKE = ("compute_capability", "core_count", "clock_rate_ghz")  # of GPUs whose processors are the same


class TimedCall(NamedTuple):
    """A call that somebody timed: as many keys as queries, `heads` of all its sequences; `window` is the number of keys
    that a query sees, 0 for all."""

    tokens: int
    heads: int
    mask: str
    window: int
    seconds: float

    @property
    def band(self) -> MaskBlock:
        """The scores of a head."""
        low = 1 - self.window if self.window else -UNBOUNDED
        high = UNBOUNDED if MASKS[self.mask].sees_future else 0
        return MaskBlock(0, 0, self.tokens, self.tokens, low, high)


class CallFit(NamedTuple):
    """The cost that was fitted to calls, and the relative error of each."""

    cost: TileCost
    errors: np.ndarray

    @property
    def median_error(self) -> float:
        return float(np.median(np.abs(self.errors)))


class MeasuredCalls(NamedTuple):
    """The calls that set constants: the machine, the library or publication that they come from, and their window."""

    hardware: str
    origin: str
    window: int
    calls: tuple[TimedCall, ...]


def line_calls(line: dict[str, str]) -> Iterator[TimedCall]:
    """The calls at the rates of a line of the distilled table: one sequence, and as many heads as its rows of queries
    hold; none of a mask of chunks."""
    width, window = int(line["head_dim"]) + int(line["v_dim"]), int(line["window"])
    for name, rate in line.items():
        tokens = int(name.partition("_")[2]) if name.startswith("tflops_") else 0
        heads = int(line["query_rows"]) // tokens if tokens else 0
        if rate and heads and line["mask"] in MASKS:
            seen = min(window or tokens, tokens)
            scores = tokens**2 if line["mask"] == "full" else tokens * seen - seen * (seen - 1) // 2
            yield TimedCall(tokens, heads, line["mask"], window, 2 * width * heads * scores / (float(rate) * 1e12))


@cache
def forward_calls() -> dict[tuple[str, str, Heads, int], dict[str, list[TimedCall]]]:
    """The calls by machine, kernel, size of heads and window, of each library."""
    found = dict[tuple[str, str, Heads, int], dict[str, list[TimedCall]]]()
    for line in table_rows(FORWARD):
        if line["kernel"] not in LIBRARIES or int(line["query_rows"]) < MIN_ROWS:
            continue
        heads, window = Heads(int(line["head_dim"]), int(line["v_dim"])), int(line["window"])
        calls = [call for call in line_calls(line) if call.tokens >= MIN_TOKENS]
        by_library = found.setdefault((line["target"], line["kernel"], heads, window), {})
        if calls:
            by_library.setdefault(line["library"], []).extend(calls)
    return found


def library_of(hardware: str, kernel: str, heads: Heads, window: int = 0) -> str | None:
    """The library whose forward calls set the constants of a kernel; None where there are none."""
    known = forward_calls().get((hardware, kernel, heads, window), {})
    return next((name for name in LIBRARIES.get(kernel, ()) if name in known), None)


@cache
def backward_calls() -> dict[tuple[str, str, Heads], list[TimedCall]]:
    """The published calls that set constants, by machine, kernel and size of heads."""
    found = dict[tuple[str, str, Heads], list[TimedCall]]()
    for line in table_rows(BACKWARD):
        if line["kernel"] in LIBRARIES and line["pass"] == "backward" and line["sets"]:
            heads = int(line["batch"]) * int(line["heads"])
            call = TimedCall(int(line["q_len"]), heads, line["mask"], 0, float(line["ms"]) / 1e3)
            key = line["hardware"], line["kernel"], Heads(int(line["head_dim"]), int(line["v_dim"]))
            found.setdefault(key, []).append(call)
    return found


def calls_like(hardware: Hardware, shape: TileShape, window: int) -> MeasuredCalls | None:
    """The calls that tell the cost of a shape's tiles under a window (0: none): of the machine, or of a machine with
    the same processors."""
    for name in machines_like(hardware):
        if shape.passes == "backward":
            if window == 0 and (calls := backward_calls().get((name, shape.kernel, shape.heads))):
                return MeasuredCalls(name, BACKWARD, 0, tuple(calls))
            continue
        known = [key[-1] for key in forward_calls() if key[:-1] == (name, shape.kernel, shape.heads)]
        near = [each for each in known if times_as_long(each, window) <= WINDOW_RATIO]
        for own in sorted(near, key=lambda each: times_as_long(each, window)):
            if library := library_of(name, shape.kernel, shape.heads, own):
                calls = forward_calls()[name, shape.kernel, shape.heads, own][library]
                return MeasuredCalls(name, library, own, tuple(calls))
    return None


def times_as_long(window: int, other: int) -> float:
    """How many times as long the longer of two windows is; no limit where one of them has all keys."""
    if window == other:
        return 1.0
    return max(window, other) / min(window, other) if min(window, other) else math.inf


def machines_like(hardware: Hardware) -> list[str]:
    """The machine, and the machines with the same processors."""
    own = [hardware.compiler.get(figure) for figure in ALIKE]
    others = [Hardware.load(name) for name in hardware_names()] if all(own) else []
    alike = [each.name for each in others if [each.compiler.get(figure) for figure in ALIKE] == own]
    return list(dict.fromkeys([hardware.name, *alike]))


@lru_cache(2**10)
def fit_calls(calls: tuple[TimedCall, ...], processors: int, passes: str = "forward") -> CallFit:
    """The cost of a tile that explains the calls best: with each start and order of blocks, fitted in one problem with
    independent parts, because each fit by itself takes milliseconds."""
    from scipy.linalg import block_diag
    from scipy.optimize import least_squares

    blocks, seconds = [blocks_of_call(call, passes) for call in calls], np.array([call.seconds for call in calls])
    every = [Waves(BLOCK, processors, *each) for each in itertools.product(STARTS, (True, False))]
    counts = [
        [(makespan(own, call.heads, waves), 1.0) for own, call in zip(blocks, calls, strict=True)] for waves in every
    ]
    shares = np.array(counts) / seconds[:, None]
    units = 1 / np.median(shares, 1)
    of_all = block_diag(*(shares * units[:, None]))
    found = least_squares(
        lambda x: of_all @ x - 1,
        np.tile([0.9, 0.1], len(every)),
        jac=lambda x: of_all,
        bounds=(0, np.inf),
        loss="soft_l1",
        f_scale=SMALL_ERROR,
    )
    errors = (of_all @ found.x - 1).reshape(len(every), -1)
    best = np.argmin(np.sum(np.hypot(errors, SMALL_ERROR), 1))  # of the same loss
    tile_s, call_s = (found.x.reshape(-1, 2)[best] * units[best]).tolist()
    waves = every[best]
    cost = TileCost(
        whole_s=tile_s,
        boundary_s=tile_s,
        call_s=call_s,
        start_s=waves.start_tiles * tile_s,
        processors=processors,
        block=BLOCK,
        longest_first=waves.longest_first,
    )
    return CallFit(cost, errors[best])


def blocks_of_call(call: TimedCall, passes: str) -> tuple[int, ...]:
    """The tiles of each block of a head."""
    band = transposed(call.band) if passes == "backward" else call.band
    return tuple(blocks_of(band, BLOCK)[0].tolist())


@lru_cache(2**10)
def fitted_entry(hardware: Hardware, shape: TileShape, window: int = 0) -> Entry | None:
    """The entry of a shape under a window (0: none), or None where no calls tell it."""
    rows = calls_like(hardware, shape, window)
    if rows is None or "core_count" not in hardware.compiler:
        return None
    found = fit_calls(rows.calls, int(hardware.compiler["core_count"]), shape.passes)
    if found.median_error > MAX_ERROR:
        return None
    far = [f"{rows.hardware}, whose processors are the same"] if rows.hardware != hardware.name else []
    far += [f"a window of {rows.window}"] if rows.window != window else []
    error = f"a fit to {len(rows.calls)} calls of {rows.origin}, median error {found.median_error:.1%}"
    table = f"profiles/{BACKWARD if shape.passes == 'backward' else FORWARD}.csv"
    source = TableSource(table=table, made_by=error, interpolated_from=", ".join(far) or None)
    return Entry(found.cost, CostOrigin.PUBLISHED, source)


def distilled_attention(hardware: Hardware, workload: Workload, plan: Plan) -> CostModel | None:
    """A machine with the fitted tiles of a kernel that only a table knows; None for other kernels.

    Raises:
        BadInput: no calls tell the cost of a pass.
    """
    if not kernels[plan.kernel].table_only:
        return None
    left, known = workload.window.left, dict[str, Entry]()
    for passes, shape in shapes_of(workload, plan).items():
        entry = fitted_entry(hardware, shape, 0 if left is None else left + 1)
        if entry is None:
            raise BadInput(why_unknown(hardware, shape, windowed=left is not None))
        known[passes] = entry
    machine = entry_cost_model(hardware, workload, plan, known)
    if (table := table_of(hardware)) is None:
        return machine
    return machine.with_schedule(exposed_hops(table, plan, workload.seq_len // plan.shards), table.blocking)


def why_unknown(hardware: Hardware, shape: TileShape, windowed: bool) -> str:
    """Why the cost of a shape is unknown, and what to try."""
    sizes = "/".join(map(str, dict.fromkeys(shape.heads)))
    what = f"the {shape.passes} pass of {shape.kernel} on {hardware.name} with heads of {sizes}"
    other = WITH_WINDOWS if windowed else hardware.kernel
    return (
        f"cannot simulate {what}{' and such a window' * windowed} because its times are not published. "
        f"Try --kernel {other}{', or --pass forward' * (shape.passes == 'backward')}."
    )
