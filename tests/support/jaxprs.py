"""What a jaxpr runs and sends: collectives, and their bytes."""

import math
from collections import Counter
from collections.abc import Iterator

import jax
from jax.interpreters import partial_eval

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


def without_dead_code(jaxpr):
    """The jaxpr without equations whose results nothing reads: XLA does not run them."""
    return partial_eval.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))[0]


def jaxpr_transfers(traced: PlanProgram) -> Iterator[tuple[str, str, int, int]]:
    """(HLO's name, axis, bytes a device sends each time, how often) of every collective of the program."""
    yield from transfers(jax.make_jaxpr(traced.function)(*traced.shapes, *traced.own_shapes).jaxpr, traced.plan)


def transfers(jaxpr, plan: Plan) -> Iterator[tuple[str, str, int, int]]:
    """Those of a jaxpr."""
    for name, equation, times in walk(jaxpr):
        if name not in OPCODES:
            continue
        named = equation.params.get("axis_name", equation.params.get("axes"))
        axes = named if isinstance(named, tuple) else (named,)
        axis, n = "+".join(axes), plan.product(axes)
        shares = {"ppermute": n, "all_gather": n * (n - 1), "all_to_all": n - 1, "reduce_scatter": n - 1}
        for operand in equation.invars:
            nbytes = math.prod(operand.aval.shape) * operand.aval.dtype.itemsize
            yield OPCODES[name], axis, nbytes * shares.get(name, 2 * (n - 1)) // n, times


def jaxpr_bytes(traced: PlanProgram) -> dict[str, int]:
    total: Counter[str] = Counter()
    for opcode, _, nbytes, times in jaxpr_transfers(traced):
        total[opcode] += nbytes * times
    return dict(total)
