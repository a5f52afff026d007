"""Checks of the arguments of the library's attention: shapes and dtypes always, and values where they are known, which
they are not under jit, vmap or a gradient.

Letters: B batch, T positions in the layout's order, N query heads, K key/value heads, H head_dim, D documents.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from stripectl.core.layout import layouts
from stripectl.core.linear_attention import CONSTANT
from stripectl.core.packing import check_segment_ids, check_starts
from stripectl.core.plan import Plan
from stripectl.core.recurrence import LOG_GATE, WRITE, recurrences
from stripectl.core.workload import DTYPES, Workload
from stripectl.errors import BadInput
from stripectl.util.units import plural

# Words for the options that messages of plans and workloads name.
PHRASES = {
    "seqlen": "{} positions (stripectl.padded_length)",
    "scheme": "scheme {} in the plan",
    "layout": "layout {} in the plan",
    "kernel": "kernel {} in the plan",
    "attention": "{} attention",
    "feature_map": "features={!r}",
    "decay": "decay='{}'",
    "documents": "documents and segment_ids",
    "kv_heads": "{} heads of keys and values",
    "key_heads": "heads of keys",
    "v_head_dim": "heads of values of another size",
    "mesh": "mesh {}",
    "dtype": "q, k and v of {}",
}
GATE_RANGES = {LOG_GATE: (-math.inf, 0.0), WRITE: (0.0, 2.0)}


def check_array(name: str, x: object) -> None:
    """Do nothing for an array of JAX or NumPy.

    Raises:
        BadInput: something else.
    """
    if not isinstance(x, jax.Array | np.ndarray):
        raise BadInput(f"cannot read {name} because it is a {type(x).__name__}, not an array. Try jnp.asarray({name}).")


def known_values(x: Any) -> np.ndarray | None:
    """The values of an array; None under a trace, and of an array of which other processes hold a part."""
    if isinstance(x, Tracer) or (isinstance(x, jax.Array) and not x.is_fully_addressable):
        return None
    return np.asarray(x)


def cannot_attend(what: str, advice: str) -> BadInput:
    """The error of an argument with which attention cannot be computed."""
    return BadInput(f"cannot attend because {what}. Try {advice}.")


def check_heads(q_BTNH: Any, k_BTKH: Any, v_BTKH: Any, recurrence: str) -> None:
    """Do nothing for queries, keys and values whose shapes and dtypes fit together.

    Raises:
        BadInput: they do not.
    """
    named = {"q": q_BTNH, "k": k_BTKH, "v": v_BTKH}
    for name, x in named.items():
        check_array(name, x)
        if x.ndim != 4 or 0 in x.shape:
            lacking = f"{name}[None] for a batch of one, or {name}[:, :, None] for one head"
            raise cannot_attend(
                f"{name} needs the shape (batch, positions, heads, head_dim), none of them 0, not {x.shape}", lacking
            )
        if str(x.dtype) not in DTYPES:
            raise cannot_attend(
                f"{name} is {x.dtype}, and attention takes {' or '.join(DTYPES)}", f"{name}.astype('float32')"
            )
        if x.dtype != q_BTNH.dtype:
            raise cannot_attend(f"{name} is {x.dtype}, and q is {q_BTNH.dtype}", f"{name}.astype(q.dtype)")
        if x.shape[0] != q_BTNH.shape[0]:
            raise cannot_attend(f"{name} has a batch of {x.shape[0]}, and q of {q_BTNH.shape[0]}", "equal batches")
        if x.shape[1] != q_BTNH.shape[1]:
            raise cannot_attend(
                f"{name} has {x.shape[1]} positions, and q has {q_BTNH.shape[1]}",
                "as many queries as keys and values; stripectl bench has schemes for inference",
            )
    if k_BTKH.shape[3] != q_BTNH.shape[3]:
        raise cannot_attend(
            f"heads of k have {k_BTKH.shape[3]} elements, and heads of q {q_BTNH.shape[3]}", "equal sizes"
        )
    check_head_counts(q_BTNH.shape[2], k_BTKH.shape[2], v_BTKH.shape[2], recurrence)


def check_head_counts(heads: int, keys: int, values: int, recurrence: str) -> None:
    """Do nothing for numbers of heads of queries, keys and values that fit together.

    Raises:
        BadInput: they do not.
    """
    if recurrence == CONSTANT and keys != values:
        raise cannot_attend(
            f"k has {plural(keys, 'head')}, and v has {values}", f"jnp.repeat(x, times, axis=2) for {keys} each"
        )
    if recurrence == CONSTANT and heads % keys:
        able = [each for each in range(1, heads + 1) if heads % each == 0]
        raise cannot_attend(
            f"the {plural(heads, 'head')} of q cannot share the {keys} of k and v evenly",
            f"k and v with {' or '.join(map(str, able))} heads",
        )
    if recurrence != CONSTANT and (heads != keys or values % keys):
        raise cannot_attend(
            f"{recurrence} needs as many heads of q as of k, and of v as many or a multiple, not {heads}, {keys} and "
            f"{values}",
            f"jnp.repeat(x, times, axis=2) for {math.lcm(heads, keys, values)} heads each",
        )


def check_packing(documents: Any, segment_ids: Any, plan: Plan, batch: int, rows: int, seq_len: int) -> None:
    """Do nothing for at most one of the two, of the right shape and dtype, and with right values where they are known;
    `rows` are the positions of q.

    Raises:
        BadInput: they are wrong.
    """
    if documents is not None and segment_ids is not None:
        raise cannot_attend("documents and segment_ids say the same", "one of them")
    for name, x, shape in (("documents", documents, "documents"), ("segment_ids", segment_ids, "positions")):
        if x is None:
            continue
        check_array(name, x)
        if x.ndim != 2 or x.shape[0] != batch:
            advice = f"jnp.tile({name}, ({batch}, 1))" if x.ndim == 1 else f"{name} with {batch} rows"
            raise cannot_attend(
                f"{name} needs the shape ({batch}, {shape}), the batch of q first, not {x.shape}", advice
            )
        if not jnp.issubdtype(x.dtype, jnp.integer):
            raise cannot_attend(f"{name} must be integers, not {x.dtype}", f"{name}.astype('int32')")
    if segment_ids is not None:
        if segment_ids.shape[1] != rows:
            raise cannot_attend(
                f"segment_ids have {segment_ids.shape[1]} positions, and q has {rows}",
                "the document of each token, in the order of q, or documents= for the positions where documents begin",
            )
        if rows == seq_len and (ids := known_values(segment_ids)) is not None:
            check_segment_ids(ids[:, layouts[plan.layout].inverse(plan.shards, seq_len)])
    if documents is not None:
        if (starts := known_values(documents)) is not None and documents.shape[1]:
            check_starts(starts, seq_len, "documents")
        if documents.shape[1] == 0 or documents.shape[1] >= max(2, seq_len):
            raise cannot_attend(
                f"documents hold {documents.shape[1]} positions of each sequence of {seq_len} tokens where one begins",
                "segment_ids=documents, for the document of each token",
            )


def gates_in_order(gates: Mapping[str, jax.Array] | None, workload: Workload, shape: Sequence[int]) -> list[jax.Array]:
    """The arrays of a recurrence's gates in its own order; `shape` is (batch, positions, value heads).

    Raises:
        BadInput: names, shapes, dtypes or known values are wrong.
    """
    wanted = workload.gated.gate_shapes(workload.head_dim) if workload.gated else {}
    if gates is not None and not isinstance(gates, Mapping):
        raise cannot_attend(f"gates are a {type(gates).__name__}, not a dict of arrays by name", named_gates(wanted))
    gates = gates or {}
    if not workload.gated and gates:
        raise cannot_attend("gates need a recurrence", f"recurrence= {' or '.join(recurrences.names())}, or no gates")
    if set(gates) != set(wanted):
        given = ", ".join(map(str, gates)) or "nothing"
        raise cannot_attend(
            f"{workload.recurrence} takes {', '.join(wanted)} in gates, not {given}", named_gates(wanted)
        )
    for name, own in wanted.items():
        x, needed = gates[name], (*shape, *own)
        check_array(name, x)
        if x.shape != needed:
            raise cannot_attend(
                f"the gate {name} of {workload.recurrence} needs the shape {needed}, (batch, positions, heads of v"
                f"{', head_dim of k' * len(own)}), not {x.shape}",
                f"jnp.broadcast_to({name}{'[..., None]' * (x.shape == tuple(shape))}, {needed})",
            )
        if str(x.dtype) != "float32":
            raise cannot_attend(
                f"the gate {name} is {x.dtype}, and gates add up over a sequence", f"{name}.astype('float32')"
            )
        check_gate_values(name, known_values(x))
    return [gates[name] for name in wanted]


def named_gates(wanted: Iterable[str]) -> str:
    inside = ", ".join(f"{name!r}: ..." for name in wanted)
    return f"gates={{{inside}}}" if inside else "no gates"


def check_gate_values(name: str, values: np.ndarray | None) -> None:
    """Do nothing for values that a gate can have.

    Raises:
        BadInput: it cannot.
    """
    if values is None or not values.size:
        return
    low, high = GATE_RANGES[name]
    if not np.isfinite(values).all():
        raise cannot_attend(f"the gate {name} holds values that are not finite", f"jnp.maximum({name}, -1e4)")
    if values.min() >= low and values.max() <= high:
        return
    wrong = values.max() if values.max() > high else values.min()
    if name == LOG_GATE:
        what, advice = "is the logarithm of a factor from 0 to 1, at most 0", "jnp.log(factor)"
    else:
        what, advice = "is a share from 0 to 2 of an old value", "jax.nn.sigmoid(logits)"
    raise cannot_attend(f"the gate {name} {what}, and it holds {wrong:.3g}", f"gates={{'{name}': {advice}, ...}}")


def check_scale(scale: Any, attention: str) -> None:
    """Do nothing for a number, or an array of one, by which softmax attention can multiply scores.

    Raises:
        BadInput: something else.
    """
    if attention == "linear":
        raise cannot_attend("linear attention has no scores to scale", "scale * q, and no scale")
    if isinstance(scale, jax.Array | np.ndarray):
        if scale.shape != () or not jnp.issubdtype(scale.dtype, jnp.floating):
            raise cannot_attend(f"scale has shape {scale.shape} and is {scale.dtype}", "one floating-point number")
        if isinstance(scale, Tracer):
            return
    elif isinstance(scale, bool) or not isinstance(scale, int | float | np.floating | np.integer):
        raise cannot_attend(f"scale is {scale!r:.40}, not a number", "scale=head_dim**-0.5, or no scale")
    if not math.isfinite(float(scale)):
        raise cannot_attend(f"scale is {float(scale)}", "scale=head_dim**-0.5, or no scale")


def check_sinks(sinks_N: Any, heads: int) -> None:
    """Do nothing for float32 sinks of so many query heads, with finite values where they are known.

    Raises:
        BadInput: something else.
    """
    check_array("sinks", sinks_N)
    if sinks_N.shape != (heads,):
        raise cannot_attend(f"sinks need the shape ({heads},), one per head of q, not {sinks_N.shape}", "one per head")
    if str(sinks_N.dtype) != "float32":
        raise cannot_attend(
            f"sinks are {sinks_N.dtype}, and they join a float32 log-sum-exp", "sinks.astype('float32')"
        )
    if (values := known_values(sinks_N)) is not None and not np.isfinite(values).all():
        raise cannot_attend("sinks hold values that are not finite", "jnp.maximum(sinks, -1e30), which adds nothing")
