"""How unevenly packed documents load the devices of each plan."""

from collections.abc import Mapping
from dataclasses import dataclass

from stripectl.analysis.note import Note
from stripectl.core.lengths import format_length
from stripectl.results.run import Run
from stripectl.util.units import times

MAX_PLANS = 10  # plans of a length that a sentence names, the most even first


@dataclass(frozen=True)
class PackingLoad:
    """The tiles of the busiest device over the mean of all devices, by plan, the most even first."""

    seq_len: int
    ratios: Mapping[str, float]


def packing_loads(run: Run) -> list[PackingLoad]:
    """The loads at each length of packed documents; plans that differ only in tiles are one."""
    lengths: dict[int, dict[str, float]] = {}
    for m in run.results:
        if m.workload.documents and m.tiles and m.tiles.per_round and m.devices > 1:
            work = [sum(device) for device in m.tiles.per_round]
            plans = lengths.setdefault(m.workload.seq_len, {})
            plans.setdefault(str(m.plan).partition(",tile")[0], max(work) * len(work) / sum(work))
    return [PackingLoad(at, dict(sorted(plans.items(), key=lambda plan: plan[1]))) for at, plans in lengths.items()]


def packing_sentences(run: Run) -> list[str]:
    """One for each length, which several lengths name."""
    found = packing_loads(run)
    said = list[str]()
    for each in found:
        best = "; ".join(f"{times(ratio)} {plan}" for plan, ratio in list(each.ratios.items())[:MAX_PLANS])
        of = f" ({format_length(each.seq_len)} tokens)" * (len(found) > 1)
        said.append(f"tiles of the busiest device over the mean{of}: {best}")
    return said


note = Note(label="packing", find=packing_sentences, order=20)
