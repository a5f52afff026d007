"""What a jaxpr runs and sends: collectives, and their bytes."""

import math
from collections import Counter
from collections.abc import Iterator

import jax

from stripectl.core.plan import Plan
from stripectl.execute.program import PlanProgram

OPCODES = {
    "ppermute": "collective-permute",
    "all_gather": "all-gather",
    "all_to_all": "all-to-all",
    "reduce_scatter": "reduce-scatter",
    "psum": "all-reduce",
    "pmax": "all-reduce",
}


def walk(jaxpr, times: int = 1):
    """(primitive, equation, how often it runs) of a jaxpr, through calls and loops."""
    for equation in jaxpr.eqns:
        yield equation.primitive.name, equation, times
        inner_times = times * equation.params["length"] if equation.primitive.name == "scan" else times
        for value in equation.params.values():
            for inner in value if isinstance(value, tuple | list) else (value,):
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns"):
                    yield from walk(inner, inner_times)


def jaxpr_transfers(traced: PlanProgram) -> Iterator[tuple[str, str, int, int]]:
    """(HLO's name, axis, bytes a device sends each time, how often) of every collective of the program."""
    yield from transfers(jax.make_jaxpr(traced.function)(*traced.shapes, *traced.own_shapes).jaxpr, traced.plan)


def transfers(jaxpr, plan: Plan) -> Iterator[tuple[str, str, int, int]]:
    """Those of a jaxpr."""
    for name, equation, times in walk(jaxpr):
        if name not in OPCODES:
            continue
        axes = equation.params.get("axis_name", equation.params.get("axes"))
        axis = axes[0] if isinstance(axes, tuple) else axes
        n = plan.size(axis)
        shares = {"ppermute": n, "all_gather": n * (n - 1), "all_to_all": n - 1, "reduce_scatter": n - 1}
        for operand in equation.invars:
            nbytes = math.prod(operand.aval.shape) * operand.aval.dtype.itemsize
            yield OPCODES[name], axis, nbytes * shares.get(name, 2 * (n - 1)) // n, times


def jaxpr_bytes(traced: PlanProgram) -> dict[str, int]:
    total: Counter[str] = Counter()
    for opcode, _, nbytes, times in jaxpr_transfers(traced):
        total[opcode] += nbytes * times
    return dict(total)
