"""Chunks of recurrences on GPUs, from kernels that compute a chunk in stages, as NVIDIA measured them
(`profiles/distilled/recurrences.csv`: the kernels of flash-linear-attention in TensorRT-LLM and SGLang).

A chunk takes the memory traffic of its stages at a share of the memory's rate. One stage computes the states of a
sequence chunk by chunk, for all heads at once: each chunk also takes a step, whatever the number of heads, so that few
heads leave a GPU idle. A call takes the starts of its stages. Three times of the table give the three figures of a GPU
and a recurrence: of many heads the share, of few heads the step, of few heads and tokens the call. The other rows test
them (`analysis.accuracy.recurrences`). A GPU without rows reaches the share of a GPU of its architecture, and computes
a chunk on a processor no faster than that GPU's fastest row: an H20 has a faster memory than an H100 and 78 of its 132
processors.

The table has no backward pass: its stages are taken to reach the forward pass's share, and its states take two steps.
"""

import math
from functools import cache
from typing import NamedTuple

from stripectl.core.kernel import kernels
from stripectl.core.plan import Plan
from stripectl.core.sequence_sharding import sequence_sharding
from stripectl.core.workload import Workload
from stripectl.costs.cost_model import CostModel
from stripectl.costs.shape import TileShape
from stripectl.costs.sources.datasheet import datasheet_costs
from stripectl.costs.sources.gated_chunks import STATE_STEPS, stage_bytes
from stripectl.hardware.profile import Hardware, hardware_names, needed_figures
from stripectl.results.cost_source import CostOrigin, CostSource, Stages
from stripectl.results.tile_cost import TileCost
from stripectl.util.files import table_rows

TABLE = "distilled/recurrences"
SOURCE = f"aiconfigurator-core 0.12.0, profiles/{TABLE}.csv"
# The kernel and library of the rows that give the figures of a recurrence. SGLang has gdn too, but takes up to 1.6
# times as long with more heads of keys on H100; vLLM's kernels on Hopper and Blackwell have no stages.
MEASURED = {"gdn": ("gdn", "trtllm"), "deltanet": ("gdn", "trtllm"), "kda": ("kda", "sglang")}
LIBRARIES = {"trtllm": "TensorRT-LLM", "sglang": "SGLang"}
MANY_HEADS, FEW_HEADS, FEW_TOKENS = (512, 8192), (8, 32768), (8, 512)  # heads, tokens
CHUNK = 64  # rows of a chunk of these kernels
SHARED_KEYS = 2  # value heads per key head of gdn in most rows
LEFT_OUT = "loops of XLA, which take longer than the measured kernels; the GPU's cache, which holds short sequences"


class StageTimes(NamedTuple):
    """Seconds of a call, of a step, and of a chunk of one value head with all processors busy; the last also in the
    fastest row, whose arrays a cache may hold."""

    call_s: float
    step_s: float
    chunk_s: float
    fastest_chunk_s: float


def measured_stages(hardware: Hardware, workload: Workload, plan: Plan) -> CostModel | None:
    """A machine, without links, whose chunks take measured times of stages; None for a kernel without stages, and where
    neither the machine nor another GPU of its architecture has rows for the recurrence.

    Raises:
        BadInput: the profile lacks a figure that this needs.
    """
    if not (plan.kernel and kernels[plan.kernel].costs.in_stages and workload.recurrence in MEASURED):
        return None
    kernel, library = MEASURED[workload.recurrence]
    measured_on = nearest_gpu(hardware, kernel, library)
    if not measured_on:
        return None
    times = stage_times(measured_on, kernel, library)
    share = memory_share(hardware, Hardware.load(measured_on), kernel, times)
    machine = datasheet_costs(hardware, workload, plan, share)
    heads = TileShape.of(workload, plan, "forward").kv_heads * sequence_sharding(workload, plan).runs

    def with_steps(cost: TileCost, whole: str, boundary: str) -> TileCost:
        """Costs are per head, so each head has its part of a step."""
        return TileCost(
            whole_s=cost.whole_s + STATE_STEPS[whole] * times.step_s / heads,
            boundary_s=cost.boundary_s + STATE_STEPS[boundary] * times.step_s / heads,
            call_s=times.call_s,
        )

    known = machine.cost_source
    source = CostSource(
        source=CostOrigin.MEASURED_STAGES,
        rates=known.rates,
        stages=stages_of(measured_on, f"{kernel} of {LIBRARIES[library]}", share, times),
        sources={**(known.sources or {}), "stages": SOURCE},
        left_out=LEFT_OUT,
    )
    forward = with_steps(machine.forward, "map", "outputs")
    backward = with_steps(machine.backward, "transposed_map", "gradients")
    return CostModel(forward, backward, source, overlaps=machine.overlaps)


def stages_of(gpu: str, kernel: str, share: float, times: StageTimes) -> Stages:
    """The record of the stages of a kernel that was measured on a GPU."""
    return Stages(
        measured_on=gpu,
        measured_kernel=kernel,
        memory_share=share,
        step_s=times.step_s,
        stages_call_s=times.call_s,
    )


def memory_share(hardware: Hardware, measured: Hardware, kernel: str, times: StageTimes) -> float:
    """The share of a machine's memory rate at which stages exchange their arrays.

    Raises:
        BadInput: the profile lacks the rate.
    """
    (own,) = needed_figures(hardware, {"hbm_bytes_per_s": hardware.figure("hbm_bytes_per_s")})
    processors = float(measured.compiler["core_count"])
    fewer = processors / float(hardware.compiler.get("core_count", processors))
    chunk_s = max(times.chunk_s * measured.figures["hbm_bytes_per_s"] / own, times.fastest_chunk_s * fewer)
    return nbytes_of_chunk(kernel) / chunk_s / own


def nearest_gpu(hardware: Hardware, kernel: str, library: str) -> str | None:
    """The machine whose rows hold: itself, the machine that it is based on, or of its architecture the one whose memory
    has the nearest rate."""
    known = {gpu for gpu, *of in measured_calls() if of == [kernel, library]} & {*hardware_names()}
    if hardware.tables_of in known:
        return hardware.tables_of
    rates = {gpu: Hardware.load(gpu).figures["hbm_bytes_per_s"] for gpu in sorted(known)}
    alike = [gpu for gpu in rates if Hardware.load(gpu).capability == hardware.capability]
    own = hardware.figure("hbm_bytes_per_s")
    return min(alike, key=lambda gpu: abs(math.log(rates[gpu] / own))) if alike and own else None


@cache
def measured_calls() -> dict[tuple[str, str, str], dict[tuple[int, int], float]]:
    """Seconds of a call, by (heads, tokens of a sequence), of each GPU, kernel and library."""
    found = dict[tuple[str, str, str], dict[tuple[int, int], float]]()
    for row in table_rows(TABLE):
        calls = found.setdefault((row["target"], row["kernel"], row["library"]), {})
        for name, ns in row.items():
            if name.startswith("ns_") and ns:
                heads, tokens = int(row["heads"]), int(name.removeprefix("ns_"))
                calls[heads, tokens] = float(ns) * 1e-9 * heads * tokens
    return found


@cache
def stage_times(gpu: str, kernel: str, library: str) -> StageTimes:
    """The times of a GPU's kernel, from three calls."""
    calls = measured_calls()[gpu, kernel, library]

    def without(shape: tuple[int, int], chunk_s: float, step_s: float = 0.0) -> float:
        heads, tokens = shape
        return max(0.0, calls[shape] - tokens // CHUNK * (heads * chunk_s + step_s))

    heads, tokens = MANY_HEADS
    chunk_s = calls[MANY_HEADS] / heads / (tokens // CHUNK)
    step_s = without(FEW_HEADS, chunk_s) / (FEW_HEADS[1] // CHUNK)
    fastest_chunk_s = min(call_s / heads / tokens for (heads, tokens), call_s in calls.items()) * CHUNK
    return StageTimes(without(FEW_TOKENS, chunk_s, step_s), step_s, chunk_s, fastest_chunk_s)


@cache
def nbytes_of_chunk(kernel: str) -> float:
    """Bytes that the stages of a measured chunk of one value head exchange."""
    heads = SHARED_KEYS if kernel == "gdn" else 1
    measured = Workload(
        seq_len=CHUNK, heads=heads, kv_heads=heads, key_heads=1, head_dim=128, attention="linear", recurrence=kernel
    )
    return stage_bytes(measured, CHUNK)["outputs"]
