"""Simulated without a compiler and compiled: the same plans, forward and backward, at 32k and 256k tokens.

    python benchmarks/agreement.py v5p:2x2x4 v4:2x2x4      # ten minutes a target; alone: all five

Both take tiles from the same table; what the plan's own program adds is which transfers its schedule leaves without
tiles beside them.
"""

import sys
from collections.abc import Iterator
from dataclasses import replace

from stripectl.compile.compiler import CompilerPool
from stripectl.compile.cost_model import compiled_cost_model
from stripectl.core.layout import Tile
from stripectl.core.plan import Plan, parse_plan
from stripectl.core.workload import Workload
from stripectl.hardware.placement import place_mesh
from stripectl.hardware.target import Target, parse_target
from stripectl.simulate.cost_tables import shipped_costs, table_cost_model
from stripectl.simulate.simulation import simulate

TARGETS = ("v4:2x2x4", "v5e:4x4", "v5p:2x2x4", "v6e:4x4", "tpu7x:2x2x1")
LENGTHS = (2**15, 2**18)


def plans(target: Target, length: int) -> Iterator[Plan]:
    many = target.devices
    two = f"ring={many // 4},ulysses=4" if many > 8 else f"ring={many // 2},ulysses=2"
    texts = [f"ulysses/contiguous/pallas_tpu@ulysses={many}"]
    for layout in ("contiguous", "striped", "zigzag"):
        texts += [f"{scheme}/{layout}/pallas_tpu@ring={many}" for scheme in ("ring", "bidirectional", "all_gather")]
        texts.append(f"usp/{layout}/pallas_tpu@{two}")
    for text in texts:
        plan = parse_plan(text)
        side = min(1024, length // plan.shards // (2 if plan.layout == "zigzag" else 1))
        yield replace(plan, tile=Tile(side, side))


def main(names: list[str]) -> None:
    print(
        "target        tokens  plan                                                        simulated  compiled  ratio"
    )
    with CompilerPool(lambda *_: None) as compilers:
        for name in names:
            target = parse_target(name)
            for length in LENGTHS:
                work = Workload(seq_len=length, heads=16, kv_heads=16, head_dim=128, passes="forward-backward")
                for plan in plans(target, length):
                    show(work, plan, target, compilers)


def show(work: Workload, plan: Plan, target: Target, compilers: CompilerPool) -> None:
    wired, known = place_mesh(target, plan.mesh or ()), shipped_costs(target.hardware, work, plan)
    facts = compilers.report(work, plan, target, {})
    assert known
    if "refused" in facts:
        print(f"{target!s:12} {work.seq_len // 1024:5}k  {plan!s:60}  refused: {facts['refused'][:60]}")
        return
    clocked = simulate(work, plan, table_cost_model(target.hardware, work, plan, known, wired)).seconds
    compiled = simulate(work, plan, compiled_cost_model(target.hardware, work, plan, facts, wired, known)).seconds
    times = f"{clocked * 1e3:7.1f} ms {compiled * 1e3:6.1f} ms  {clocked / compiled:.3f}"
    print(f"{target!s:12} {work.seq_len // 1024:5}k  {plan!s:60} {times}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:] or list(TARGETS))
