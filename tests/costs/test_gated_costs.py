"""The cost of a chunk of a recurrence by a datasheet, beside published times of kernels for GPUs."""

import pytest

from stripectl.core.layout import Tile
from stripectl.core.recurrence import recurrences
from stripectl.core.workload import Workload
from stripectl.costs.sources.gated_chunks import chunk_work, chunk_work_in_stages
from stripectl.hardware.profile import Hardware
from tests.support.machines import datasheet_machine

ROWS, LENGTH = 64, 2**15


def layer(heads: int, key_heads: int, recurrence: str = "gdn") -> Workload:
    return Workload(
        seq_len=LENGTH,
        heads=heads,
        kv_heads=heads,
        key_heads=key_heads,
        head_dim=128,
        attention="linear",
        recurrence=recurrence,
        passes="forward-backward",
    )


PUBLISHED_S = [  # heads of values and keys, pass, FlashQLA, fla 0.5.1: QwenLM/FlashQLA benchmark_results_H200.txt
    (64, 16, "forward", 1.52e-3, 3.33e-3),
    (32, 16, "forward", 0.877e-3, 1.89e-3),
    (32, 16, "backward", 2.52e-3, 5.70e-3),
]


@pytest.mark.parametrize(("heads", "key_heads", "passes", "fastest_s", "usual_s"), PUBLISHED_S)
def test_a_chunk_in_stages_is_near_published_kernels(
    heads: int, key_heads: int, passes: str, fastest_s: float, usual_s: float
) -> None:
    """At most a third slower than the fastest published kernel, and 2.3 times faster than the usual kernel."""
    hardware, tile = Hardware.load("h200"), Tile(ROWS, ROWS)
    machine = datasheet_machine(hardware, layer(heads, key_heads), tile, kernel="gated")
    cost = machine.forward if passes == "forward" else machine.backward
    seconds = LENGTH // ROWS * heads * cost.boundary_s
    assert 0.75 * fastest_s < usual_s / 2.4 < seconds < 1.35 * fastest_s
    fused = datasheet_machine(hardware, layer(heads, key_heads), tile, kernel="pallas_gated")
    assert (fused.forward if passes == "forward" else fused.backward).boundary_s < cost.boundary_s / 2


@pytest.mark.parametrize("name", recurrences.names())
def test_stages_move_more_bytes_and_compute_as_much(name: str) -> None:
    fused, staged = (work(layer(32, 32, name), ROWS) for work in (chunk_work, chunk_work_in_stages))
    for part, work in staged.items():
        assert work.flops == fused[part].flops and work.nbytes >= fused[part].nbytes


def test_the_forward_stages_of_gated_delta_net_exchange_these_arrays() -> None:
    """In keys or values of a chunk, whose 64 x 64 scores in bfloat16 are a half, and states 2. The scores read keys and
    write 1 (float32), the inverse reads 1 and writes 1/2, W and U read 2 1/2 and write 2, states read 3 and write 3,
    outputs read 5 and write 2 (float32)."""
    array, gates = ROWS * 128 * 2, ROWS * 2 * 4
    staged = chunk_work_in_stages(layer(32, 32), ROWS)
    assert staged["outputs"].nbytes == (2 + 1.5 + 4.5 + 6 + 7) * array + 4 * gates
    assert staged["map"].nbytes == (2 + 1.5 + 4.5 + 3) * array + 3 * gates
