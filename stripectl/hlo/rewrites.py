"""A compiler's changes to the communication of a program, by name: simulated bytes plus these give the HLO's bytes.

- merged rotation: where the backward pass rotates K/V or queries as the forward pass did, one of the two is dropped.
  There are barriers between the rounds of an unrolled loop: where XLA keeps them (on CPU from jaxlib 0.11 on), only the
  rotation of the first round, which no barrier precedes, is merged;
- narrowing: an array that is rounded to bfloat16 after a transfer is rounded before it;
- widening: a CPU sends bfloat16 as float32;
- reduce-scatter as all-reduce: a TPU sums everything on all devices and keeps a part, for twice the bytes;
- all-gather as all-reduce: a TPU sums arrays that are zero but for a device's part, for twice the bytes
  (`hardware/spread.py`).

A change that none of these explains is `unexplained`, and a test fails where it appears.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

from stripectl.core.workload import Workload
from stripectl.hlo.module import ITEM_BYTES, Collective
from stripectl.results.compiled_program import Rewrite

Transfers = Mapping[tuple[str, int, int], int]  # (opcode, elements, itemsize) -> how often a device sends it


def rewrites(workload: Workload, program: Transfers, found: Iterable[Collective]) -> list[Rewrite]:
    """The rewrites that turn the program's transfers into the compiled transfers; `unexplained` where none does.

    A transfer of several arrays at once counts as one transfer per array.
    """
    compiled: Counter[tuple[str, int, int]] = Counter()
    named: list[Rewrite] = []
    halved = Counter[tuple[str, int]]()
    for (opcode, elements, _), times in program.items():
        halved[opcode, elements] += times
    for each in found:
        key = each.opcode, each.elements, ITEM_BYTES[each.dtype]
        halves = [(opcode, each.elements // 2) for opcode in ("reduce-scatter", "all-gather")]
        half = next((half for half in halves if halved[half] >= each.times), None)
        if each.opcode == "all-reduce" and half:
            halved[half] -= each.times
            key = (*half, key[2])
            named.append(Rewrite(f"{half[0]} as all-reduce", each.times, each.sent_bytes // 2 * each.times))
        compiled[key] += each.times
    for opcode, elements in sorted({key[:2] for key in [*program, *compiled]}):
        sizes = {size: (program.get((opcode, elements, size), 0), compiled[opcode, elements, size]) for size in (2, 4)}
        merges = opcode == "collective-permute" and workload.passes != "forward"
        named += _resized(elements, sizes, merges)
    return total_bytes(named)


def _resized(elements: int, sizes: Mapping[int, tuple[int, int]], merges: bool) -> list[Rewrite]:
    """The rewrites of transfers of `elements` elements: `sizes[itemsize]` is their number in the program and in the
    compiled program."""
    (said2, sent2), (said4, sent4) = sizes[2], sizes[4]
    narrowed, widened = min(max(0, said4 - sent4), sent2), min(max(0, sent4 - said4), said2)
    dropped = said2 + said4 - sent2 - sent4
    found = []
    if narrowed:
        found.append(Rewrite("narrowing", narrowed, -2 * elements * narrowed))
    if widened:
        found.append(Rewrite("widening", widened, 2 * elements * widened))
    if dropped:
        name = "merged rotation" if dropped > 0 and merges else "unexplained"
        left = 2 * elements * (sent2 - said2) + 4 * elements * (sent4 - said4) - sum(each.bytes for each in found)
        found.append(Rewrite(name, abs(dropped), left))
    return found


def total_bytes(named: Iterable[Rewrite]) -> list[Rewrite]:
    """One entry per name."""
    sums: dict[str, Rewrite] = {}
    for each in named:
        before = sums.get(each.name, Rewrite(each.name, 0, 0))
        sums[each.name] = Rewrite(each.name, before.transfers + each.transfers, before.bytes + each.bytes)
    return list(sums.values())
