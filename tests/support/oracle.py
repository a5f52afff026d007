"""Attention in float64 from its definition, values and gradients, sharing no code with the package: all scores at once
for softmax, one token after another for recurrences.

Gradients are derivatives by complex steps (Squire and Trapp 1998, doi:10.1137/S003614459631241X): f(x + ih) has the
imaginary part h f'(x) up to h^3, and no difference that cancels. Every function takes real or complex arrays with any
number of leading axes; the last axes are heads, tokens and elements.

Letters: N heads of queries or values, K shared heads, T queries, S keys, H elements of a key, E of a value.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

STEP = 1e-40  # its square vanishes beside any value


def visible(queries: int, keys: int, left: int | None, right: int | None, starts: Sequence[int] = ()) -> np.ndarray:
    """bool (T, S): the keys that a query sees, of which it may be at most `left` behind and `right` ahead, in its own
    document. The queries are the last positions of the keys."""
    document = [sum(start <= position for start in starts) for position in range(keys)]
    return np.array(
        [
            [
                (left is None or query - key <= left)
                and (right is None or key - query <= right)
                and document[key] == document[query]
                for key in range(keys)
            ]
            for query in range(keys - queries, keys)
        ]
    )


def softmax_attention(q_NTH: Any, k_KSH: Any, v_KSE: Any, keep_TS: np.ndarray) -> np.ndarray:
    """(..., N, T, E): means of values, weighted by exp(q . k / sqrt(H)) where `keep_TS` holds."""
    k_NSH, v_NSE = (np.repeat(x, q_NTH.shape[-3] // x.shape[-3], axis=-3) for x in (k_KSH, v_KSE))
    scores = q_NTH @ np.swapaxes(k_NSH, -1, -2) / np.sqrt(q_NTH.shape[-1])
    weights = np.exp(scores - np.max(scores.real, -1, keepdims=True, where=keep_TS, initial=-np.inf)) * keep_TS
    return weights @ v_NSE / weights.sum(-1, keepdims=True)


def recurrence(q_KTH: Any, k_KTH: Any, v_NTE: Any, log_gate: Any = None, write: Any = None) -> np.ndarray:
    """(..., N, T, E): a state of H x E fades by exp(log_gate), which is (..., N, T) or (..., N, T, H) or none; with
    `write`, (..., N, T), what it holds under the key is replaced by that share of the value, without it the value is
    added; the query reads the state."""
    heads, tokens = v_NTE.shape[-3:-1]
    q, k = (np.repeat(x, heads // x.shape[-3], axis=-3) for x in (q_KTH, k_KTH))
    gates = np.ones((heads, tokens)) if log_gate is None else np.exp(log_gate)
    gates = gates if gates.ndim == v_NTE.ndim else gates[..., None]  # of each element of a key, or one for all
    state, read = np.zeros((1, 1)), []
    for t in range(tokens):
        key, value, query = k[..., t, :, None], v_NTE[..., t, None, :], q[..., t, :, None]
        state = gates[..., t, :, None] * state
        if write is None:
            state = state + key * value
        else:
            held = (key * state).sum(-2, keepdims=True)
            state = state + write[..., t, None, None] * key * (value - held)
        read.append((query * state).sum(-2))
    return np.stack(read, -2)


def fading_attention(q_NTH: Any, k_KSH: Any, v_KSE: Any, kept_N: np.ndarray, elu: bool, full: bool) -> np.ndarray:
    """(..., N, T, E): linear attention, whose state keeps the share `kept_N` from token to token; with `full` a query
    reads what all keys have added, and nothing fades."""
    if elu:
        q_NTH, k_KSH = (np.where(x.real > 0, 1 + x, np.exp(x)) for x in (q_NTH, k_KSH))
    k, v = (np.repeat(x, q_NTH.shape[-3] // x.shape[-3], axis=-3) for x in (k_KSH, v_KSE))
    if full:
        return q_NTH @ (np.swapaxes(k, -1, -2) @ v)
    return recurrence(q_NTH, k, v, np.log(kept_N)[:, None] * np.ones(k.shape[-2]))


def gradients(attend: Callable[..., np.ndarray], arrays: Sequence[np.ndarray], dout: np.ndarray) -> list[np.ndarray]:
    """The gradients of (attend(*arrays) * dout).sum(), one element at a time in all sequences and heads at once: heads
    of an array share no output but with the heads of queries or values that read them."""
    found = []
    for at, x in enumerate(arrays):
        (batch, heads), token = x.shape[:2], x.shape[2:]
        nudge = 1j * STEP * np.eye(int(np.prod(token))).reshape(-1, 1, 1, *token)
        out = attend(*(y[None] + nudge if i == at else y[None] for i, y in enumerate(arrays)))
        slopes = (np.imag(out) / STEP * dout).sum((-1, -2)).reshape(len(nudge), batch, heads, -1).sum(-1)
        found.append(np.moveaxis(slopes, 0, -1).reshape(x.shape))
    return found
