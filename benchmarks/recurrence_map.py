"""Where a chain, a gather, a prefix scan or all-to-alls of gated linear attention are fastest, and why the borders lie
where they do. Simulated, nothing runs: on TPUs a chunk takes the compiler's cycles for `pallas_gated`, on GPUs the
memory traffic of its stages at the share of the memory's rate that measured kernels reach.

    python benchmarks/recurrence_map.py              # both passes; a minute
    python benchmarks/recurrence_map.py --latency 10 # of a hop, in microseconds, where the profile has none
    python benchmarks/recurrence_map.py --slower 4   # chunks on GPUs take four times as long

`lasp`, `lasp2` and `linear_scan` each send as many bytes at any length, so of these three the order depends on the
devices alone: `fixed` is what a pass takes beside its chunks. `ulysses` sends every token and makes no map. It is
faster below the length where the bytes of a device's tokens and the shorter chunks take as long as the best of `fixed`.
"""

import argparse
from dataclasses import replace
from typing import NamedTuple

from stripectl.core.lengths import format_length
from stripectl.core.plan import Plan, parse_plan
from stripectl.core.validation import why_unsupported
from stripectl.core.workload import Workload
from stripectl.costs.cost_model import CostModel
from stripectl.costs.source_order import cost_model
from stripectl.hardware.placement import place_mesh
from stripectl.hardware.target import Target, parse_target
from stripectl.results.tile_cost import TileCost
from stripectl.simulate.simulation import simulate
from stripectl.util.units import duration

TARGETS = ("v5p:2x2x1", "v5p:2x2x2", "v5p:2x2x4", "v5p:4x4x4", "h100:4", "h100:8", "2*h100:8", "8*h100:8")
LENGTHS = tuple(2**n for n in range(11, 23))
KERNELS = {"tpu": ("pallas_gated", 128), "gpu": ("gated", 64)}  # and the rows of a chunk
STATES = {"lasp": "chain", "lasp2": "gather", "linear_scan": "scan"}
SHAPES = {  # (heads of values, of keys, elements of a key, of a value)
    "gdn": (64, 64, 128, 128),
    "qwen3-next": (32, 16, 128, 128),
    "kimi-linear": (32, 32, 128, 128),
    "mamba-2": (128, 8, 128, 64),
}
RECURRENCES = {"gdn": "gdn", "qwen3-next": "gdn", "kimi-linear": "kda", "mamba-2": "mamba2"}


class Row(NamedTuple):
    """Of a model's layer on a target: what state schemes take beside chunks, and seconds by scheme and length."""

    target: str
    fixed_s: dict[str, float]
    seconds: dict[int, dict[str, float]]


def workload(shape: str, seq_len: int, passes: str) -> Workload:
    heads, keys, key_dim, value_dim = SHAPES[shape]
    return Workload(
        seq_len=seq_len,
        heads=heads,
        kv_heads=heads,
        key_heads=keys,
        head_dim=key_dim,
        v_head_dim=value_dim,
        attention="linear",
        recurrence=RECURRENCES[shape],
        passes=passes,
    )


class Assumed(NamedTuple):
    """Figures that profiles of GPUs lack: the latency of a hop, and how much longer chunks take than
    simulated."""

    latency_s: float
    slower: float


def machine_of(target: Target, work: Workload, plan: Plan, assumed: Assumed) -> CostModel:
    machine = cost_model(target.hardware, work, plan, place_mesh(target, plan.mesh or ()))
    if target.hardware.kind == "tpu":
        return machine
    both = (scaled(cost, assumed.slower) for cost in (machine.forward, machine.backward))
    machine = replace(machine, **dict(zip(("forward", "backward"), both, strict=True)))
    if target.hardware.figure("hop_latency_s") or not assumed.latency_s:
        return machine
    hops = {axis: replace_latency(hop, assumed.latency_s) for axis, hop in machine.hops.items()}
    return replace(machine, hop_latency_s=assumed.latency_s, hops=hops)


def scaled(cost: TileCost, factor: float) -> TileCost:
    return replace(cost, whole_s=cost.whole_s * factor, boundary_s=cost.boundary_s * factor)


def replace_latency(hop, latency_s: float):
    return hop._replace(latency_s=hop.latency_s * 0 + latency_s)


def simulated_row(name: str, shape: str, passes: str, assumed: Assumed) -> Row:
    target, none, found, fixed = parse_target(name), TileCost(0.0, 0.0), {}, {}
    for seq_len in LENGTHS:
        work, found[seq_len] = workload(shape, seq_len, passes), {}
        for scheme in (*STATES, "ulysses"):
            axis = "ulysses" if scheme == "ulysses" else "ring"
            kernel, tile = KERNELS[target.hardware.kind]
            plan = parse_plan(f"{scheme}/contiguous/{kernel}@{axis}={target.devices},tile={tile}")
            if seq_len // target.devices < tile or why_unsupported(plan, work, target.hardware.kind):
                continue
            machine = machine_of(target, work, plan, assumed)
            found[seq_len][scheme] = simulate(work, plan, machine).seconds
            if scheme in STATES and scheme not in fixed:
                fixed[scheme] = simulate(work, plan, replace(machine, forward=none, backward=none)).seconds
    return Row(name, fixed, {length: each for length, each in found.items() if each})


def winners(row: Row) -> str:
    """The fastest by length, neighbours together."""
    best = {length: min(each, key=lambda name, of=each: of[name]) for length, each in row.seconds.items()}
    said, lengths = [], list(best)
    for at, length in enumerate(lengths):
        if at and best[length] == best[lengths[at - 1]]:
            continue
        last = next(
            (x for x, y in zip(lengths[at:], lengths[at + 1 :], strict=False) if best[y] != best[length]), lengths[-1]
        )
        reach = format_length(length) if last == length else f"{format_length(length)} to {format_length(last)}"
        said.append(f"{reach}: {STATES.get(best[length], 'all-to-all')}")
    return "; ".join(said)


def ratios(row: Row, length: int) -> str:
    """How much faster the gather is than all-to-alls, where both can."""
    each = row.seconds.get(length, {})
    return f"{each['ulysses'] / each['lasp2']:.2f}" if {"ulysses", "lasp2"} <= each.keys() else "n/a"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--latency", type=float, default=0.0)
    parser.add_argument("--slower", type=float, default=1.0)
    given = parser.parse_args()
    assumed = Assumed(given.latency * 1e-6, given.slower)
    for shape in SHAPES:
        for passes in ("forward", "forward-backward"):
            print(f"\n{shape} ({RECURRENCES[shape]}, {SHAPES[shape]}), {passes}\n")
            print("| target | chain | gather | scan | fastest by length | all-to-all over gather at 32k, 256k |")
            print("|---|---|---|---|---|---|")
            for name in TARGETS:
                row = simulated_row(name, shape, passes, assumed)
                fixed = " | ".join(duration(row.fixed_s[scheme]) for scheme in STATES)
                print(f"| {name} | {fixed} | {winners(row)} | {ratios(row, 2**15)}, {ratios(row, 2**18)} |", flush=True)


if __name__ == "__main__":
    main()
