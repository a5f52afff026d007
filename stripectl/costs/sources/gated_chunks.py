"""The cost of a chunk of a recurrence by a datasheet: the matmuls of a head at the machine's rate, or its arrays at the
memory's rate, whichever takes longer (`datasheet.roofline`).

A kernel that keeps a chunk in fast memory reads its inputs and writes its results. Published kernels for GPUs compute a
chunk in stages, and each stage is a kernel that writes its results to memory for the next stages (`stage_bytes`). These
bytes take most of the time of such kernels, whose matrices are small.

Letters: C rows of a chunk, K elements of a key, E elements of a value; M columns of a state while a map is made: E, and
    K more where A is a matrix. A triangular system of C rows takes C^2 multiplications and additions per column.
"""

from collections.abc import Mapping
from typing import NamedTuple

from stripectl.core.workload import DTYPE_BYTES, GATE_DTYPE, Workload
from stripectl.results.tile_cost import TileCost

STATE_BYTES_PER_ELEMENT = 4
# How often the stages of a chunk compute states in the order of a sequence's chunks.
STATE_STEPS = {"map": 1, "outputs": 1, "transposed_map": 1, "gradients": 2}


class ChunkWork(NamedTuple):
    """FLOPs of matmuls and bytes of memory traffic for a chunk of one head."""

    flops: float
    nbytes: float

    def seconds(self, flops_per_s: float, memory_bytes_per_s: float) -> float:
        return max(self.flops / flops_per_s, self.nbytes / memory_bytes_per_s)


def chunk_work(workload: Workload, rows: int) -> dict[str, ChunkWork]:
    """The work of a chunk of `rows` rows, by name: `map`, `outputs`, `transposed_map` and `gradients`. Gradients
    include the states of chunks and the outputs, which are computed again."""
    recurrence, keys, values = workload.gated, workload.head_dim, workload.value_dim
    assert recurrence
    columns = values + (keys if recurrence.map_kind == "matrix" else 0)
    element, wide = DTYPE_BYTES[workload.dtype], STATE_BYTES_PER_ELEMENT
    group = workload.heads // workload.query_heads  # value heads that share a key head
    of_keys, of_values = rows * keys * element / group, rows * values * element
    of_gates = sum(
        rows * max(1, sum(shape)) * DTYPE_BYTES[GATE_DTYPE] for shape in recurrence.gate_shapes(keys).values()
    )
    scores, state = 2 * rows**2 * keys, 2 * rows * keys  # FLOPs of a chunk with itself; with one column of a state

    def solved(of_columns: int) -> float:
        """FLOPs of the scores of keys with keys, and of the triangular system for this number of columns."""
        return (scores + rows**2 * of_columns) if recurrence.delta else 0.0

    read = of_keys + of_values + of_gates
    steps = 1 + recurrence.delta  # products of a chunk with a state, for the next state
    of_map = ChunkWork(solved(keys + values) + steps * state * columns, read)
    outputs = ChunkWork(
        solved(keys + values) + scores + 2 * rows**2 * values + (steps + 1) * state * values,
        read + of_keys + rows * values * wide,
    )
    met = 2 * state * columns + scores + 2 * rows**2 * columns if recurrence.delta else 0.0
    transposed = ChunkWork(solved(keys) + state * values + met, 2 * of_keys + of_values + of_gates)
    again = ChunkWork(solved(keys + values) + steps * state * values, read + keys * values * wide)
    written = 2 * rows * keys * wide + rows * values * wide + of_gates + keys * values * wide
    gradients = ChunkWork(again.flops + 3 * outputs.flops, again.nbytes + outputs.nbytes + written)
    return {"map": of_map, "outputs": outputs, "transposed_map": transposed, "gradients": gradients}


def chunk_work_in_stages(workload: Workload, rows: int) -> dict[str, ChunkWork]:
    """The work of a chunk that is computed in stages: the same FLOPs, and more memory traffic."""
    moved = stage_bytes(workload, rows)
    return {name: work._replace(nbytes=moved[name]) for name, work in chunk_work(workload, rows).items()}


def stage_bytes(workload: Workload, rows: int) -> dict[str, float]:
    """Bytes of memory traffic for a chunk of one head that is computed in stages, by name as in `chunk_work`.

    flash-linear-attention (Yang and Zhang 2024, github.com/fla-org) has these stages and arrays in
    chunk_gated_delta_rule_fwd and _bwd: scores of keys (float32), their inverse, W and U, the states of chunks with the
    values that they write, outputs; for gradients also the gradients of values within a chunk, of states, of queries
    and keys, and through W and U. Without the delta rule there are no inverse, W and U."""
    recurrence, keys_dim, values_dim = workload.gated, workload.head_dim, workload.value_dim
    assert recurrence
    element, wide = DTYPE_BYTES[workload.dtype], STATE_BYTES_PER_ELEMENT
    keys = rows * keys_dim * element / (workload.heads // workload.query_heads)  # of keys or queries, which heads share
    values, w = rows * values_dim * element, rows * keys_dim * element if recurrence.delta else 0.0
    gates = sum(rows * max(1, sum(shape)) * wide for shape in recurrence.gate_shapes(keys_dim).values())
    state, inverse = keys_dim * values_dim * element, rows**2 * element
    results, of_keys = rows * values_dim * wide, rows * keys_dim * wide  # dq, dk and dv of a head, and outputs

    prepared = local = through = 0.0
    if recurrence.delta:
        scores = keys + gates + rows**2 * wide
        prepared = scores + rows**2 * wide + inverse + (keys + values + gates + inverse) + (w + values)
        local = 2 * keys + gates + 2 * values
        through = keys + values + gates + inverse + w + values + of_keys + results + gates
    state_reads = keys + w + values + gates
    states = state_reads + state + values * recurrence.delta
    back_reads = 2 * keys + w + values * (1 + recurrence.delta) + gates
    of_states = back_reads + state + values * recurrence.delta
    of_queries = 2 * keys + values * (2 + recurrence.delta) + 2 * state + gates + 2 * of_keys + w
    of_values = 0.0 if recurrence.delta else results + gates
    return {
        "map": prepared + state_reads,
        "outputs": prepared + states + 2 * keys + values + gates + state + results,
        "transposed_map": prepared + local + back_reads,
        "gradients": prepared + states + local + of_states + of_queries + of_values + through,
    }


def gated_chunk_costs(
    work: Mapping[str, ChunkWork], flops_per_s: float, memory_bytes_per_s: float
) -> tuple[TileCost, TileCost]:
    """(forward, backward): `whole_s` is the time of a chunk that makes a map, `boundary_s` of a chunk with outputs or
    gradients."""
    each = {name: own.seconds(flops_per_s, memory_bytes_per_s) for name, own in work.items()}
    return TileCost(each["map"], each["outputs"]), TileCost(each["transposed_map"], each["gradients"])
