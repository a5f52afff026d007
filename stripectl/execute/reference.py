"""Attention in float64, values and gradients: dense attention, and linear attention token by token. Every plan is
compared with it; NumPy only, no tiles."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from stripectl.core.layout import Window
from stripectl.core.linear_attention import FEATURES
from stripectl.core.recurrence import LOG_GATE, WRITE, Recurrence
from stripectl.core.workload import Workload


def visible_keys(queries: int, keys: int, window: Window, starts: np.ndarray | None = None) -> np.ndarray:
    """bool (queries, keys): the scores that a mask keeps for queries at the end of the keys' positions, with documents
    that begin at `starts`."""
    position, key = np.arange(keys - queries, keys)[:, None], np.arange(keys)
    keep = np.ones((queries, keys), bool)
    if window.left is not None:
        keep &= key >= position - window.left
    if window.right is not None:
        keep &= key <= position + window.right
    if starts is not None:
        keep &= np.searchsorted(starts, position, "right") == np.searchsorted(starts, key, "right")
    return keep


def reference_attention(
    workload: Workload, q: ArrayLike, k: ArrayLike, v: ArrayLike, *others: ArrayLike
) -> tuple[np.ndarray, ...]:
    """(out, dq, dk, dv, gradients of gates or sinks) of a workload's attention in float64, for positions in natural
    order. `others` are the gates of a recurrence, or the sinks (1, heads, 1), if any, and the cotangent of the output.
    """
    *gates, dout = others
    if workload.gated:
        return recurrence_by_token(workload.gated, q, k, v, gates, dout)
    if workload.rates is None:
        (sinks,) = gates or (None,)
        return dense(q, k, v, dout, workload.window, workload.starts, sinks, workload.soft_cap)
    slopes, looks_on = [1.0, 1.0], workload.window.sees_future
    if workload.features != FEATURES[0]:
        q, k = (np.asarray(x, np.float64) for x in (q, k))
        slopes = [np.where(x > 0, 1.0, np.exp(x)) for x in (q, k)]
        q, k = (np.where(x > 0, 1 + x, np.exp(x)) for x in (q, k))
    out, dq, dk, dv = recurrent(q, k, v, dout, workload.rates, looks_on)
    return out, dq * slopes[0], dk * slopes[1], dv


def dense(
    q_BNTH: ArrayLike,
    k_BKSH: ArrayLike,
    v_BKSH: ArrayLike,
    dout_BNTH: ArrayLike,
    window: Window,
    starts: np.ndarray | None = None,
    sinks_1N1: ArrayLike | None = None,
    soft_cap: float | None = None,
) -> tuple[np.ndarray, ...]:
    """(out, dq, dk, dv, the gradient of sinks if any) in float64 for positions in natural order; whole score matrix in
    memory, head by head. A sink is the score of one more key, whose value is 0 and which the mask keeps."""
    q, k, v, dout = (np.asarray(x, np.float64) for x in (q_BNTH, k_BKSH, v_BKSH, dout_BNTH))
    out, dq, dk, dv = np.empty_like(dout), np.empty_like(q), np.zeros_like(k), np.zeros_like(v)
    sinks, dsinks = None if sinks_1N1 is None else np.asarray(sinks_1N1, np.float64), np.zeros((1, q.shape[1], 1))
    scale, group = q.shape[3] ** -0.5, q.shape[1] // k.shape[1]
    keep = visible_keys(q.shape[2], k.shape[2], window, starts)
    for b, n in np.ndindex(q.shape[:2]):
        m = n // group
        s_TS, slope_TS = q[b, n] @ k[b, m].T * scale, np.float64(1)
        if soft_cap is not None:
            share_TS = np.tanh(s_TS / soft_cap)
            s_TS, slope_TS = soft_cap * share_TS, 1 - share_TS**2
        s_TS = np.where(keep, s_TS, -np.inf)
        sink = -np.inf if sinks is None else sinks[0, n, 0]
        most_T1 = np.maximum(s_TS.max(1, keepdims=True), sink)
        p_TS, sink_T1 = np.exp(s_TS - most_T1), np.exp(sink - most_T1)
        total_T1 = p_TS.sum(1, keepdims=True) + sink_T1
        p_TS /= total_T1
        out[b, n] = p_TS @ v[b, m]
        dv[b, m] += p_TS.T @ dout[b, n]
        dp_TS = dout[b, n] @ v[b, m].T
        delta_T1 = (dout[b, n] * out[b, n]).sum(1, keepdims=True)
        dsinks[0, n, 0] -= (sink_T1 / total_T1 * delta_T1).sum()
        ds_TS = p_TS * (dp_TS - delta_T1) * slope_TS * scale
        dq[b, n] = ds_TS @ k[b, m]
        dk[b, m] += ds_TS.T @ q[b, n]
    return (out, dq, dk, dv) if sinks is None else (out, dq, dk, dv, dsinks)


def recurrent(
    q_BNTH: ArrayLike,
    k_BKTH: ArrayLike,
    v_BKTH: ArrayLike,
    dout_BNTH: ArrayLike,
    rates_K: np.ndarray,
    looks_on: bool = False,
) -> tuple[np.ndarray, ...]:
    """(out, dq, dk, dv) of linear attention in float64, token by token: a state decays by exp(rate), adds k v^T, and is
    read by q; gradients by the recurrence backward in time. With `looks_on` every query reads the state of all keys."""
    q, k, v, dout = (np.asarray(x, np.float64) for x in (q_BNTH, k_BKTH, v_BKTH, dout_BNTH))
    group, tokens = q.shape[1] // k.shape[1], q.shape[2]
    wide_k, wide_v = (np.repeat(x, group, axis=1) for x in (k, v))
    kept = np.repeat(np.exp(rates_K), group)[:, None, None]
    out, dq, dk, dv = (np.empty_like(x) for x in (q, q, wide_k, wide_v))
    state = given = np.zeros((*q.shape[:2], q.shape[3], v.shape[3]))
    if looks_on:
        state = np.einsum("bnth,bnte->bnhe", wide_k, wide_v)
        given = np.einsum("bnth,bnte->bnhe", q, dout)
    for t in range(tokens):
        if not looks_on:
            state = kept * state + wide_k[:, :, t, :, None] * wide_v[:, :, t, None]
        out[:, :, t] = np.einsum("bnh,bnhe->bne", q[:, :, t], state)
        dq[:, :, t] = np.einsum("bne,bnhe->bnh", dout[:, :, t], state)
    for t in reversed(range(tokens)):
        if not looks_on:
            given = kept * given + q[:, :, t, :, None] * dout[:, :, t, None]
        dk[:, :, t] = np.einsum("bnhe,bne->bnh", given, wide_v[:, :, t])
        dv[:, :, t] = np.einsum("bnhe,bnh->bne", given, wide_k[:, :, t])
    by_key = (x.reshape(x.shape[0], -1, group, *x.shape[2:]).sum(2) for x in (dk, dv))
    return out, dq, *by_key


def recurrence_by_token(
    recurrence: Recurrence,
    q_BKTH: ArrayLike,
    k_BKTH: ArrayLike,
    v_BNTE: ArrayLike,
    gates: Sequence[ArrayLike],
    dout_BNTE: ArrayLike,
    dtype: Any = np.float64,
) -> tuple[np.ndarray, ...]:
    """(out, dq, dk, dv, gradients of the gates) of a recurrence token by token, from the formula of
    `stripectl.core.recurrence`; its gradients go backward in time from the states that were kept."""
    q, k, v, dout, *gates = (np.asarray(x, dtype) for x in (q_BKTH, k_BKTH, v_BNTE, dout_BNTE, *gates))
    given = dict(zip(recurrence.gate_shapes(q.shape[3]), gates, strict=True))
    group, tokens = v.shape[1] // k.shape[1], q.shape[2]
    q, k = (np.repeat(x, group, axis=1) for x in (q, k))
    kept = np.exp(given.get(LOG_GATE, np.zeros(k.shape[:3], dtype)))
    kept = kept if kept.ndim == 4 else kept[..., None]  # per key element, or one for all
    write = given.get(WRITE)
    states = np.zeros((tokens + 1, *k.shape[:2], k.shape[3], v.shape[3]), dtype)
    out, errors = np.empty_like(v), np.array(v)  # the change that the delta rule makes, before its weight
    for t in range(tokens):
        faded = kept[:, :, t, :, None] * states[t]
        if write is not None:
            errors[:, :, t] -= np.einsum("bnhe,bnh->bne", faded, k[:, :, t])
        added = errors[:, :, t] if write is None else write[:, :, t, None] * errors[:, :, t]
        states[t + 1] = faded + k[:, :, t, :, None] * added[:, :, None]
        out[:, :, t] = np.einsum("bnhe,bnh->bne", states[t + 1], q[:, :, t])
    dq, dk, dv, dlog, dwrite = recurrence_gradients(q, k, dout, kept, write, states, errors)
    by_key = [x.reshape(x.shape[0], -1, group, *x.shape[2:]).sum(2) for x in (dq, dk)]
    of_gates = {LOG_GATE: dlog if kept.shape[3] > 1 else dlog.sum(3), WRITE: dwrite}
    return (out, *by_key, dv, *(of_gates[name] for name in given))


def recurrence_gradients(
    q: np.ndarray,
    k: np.ndarray,
    dout: np.ndarray,
    kept: np.ndarray,
    write: np.ndarray | None,
    states: np.ndarray,
    errors: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray | None]:
    """(dq, dk, dv, the gradients of the gate's logarithm and of the written shares), backward in time from the states
    before every token and the changes that the delta rule made."""
    dq, dk, dv, dlog = map(np.empty_like, (q, k, dout, np.broadcast_to(kept, k.shape)))
    dwrite = None if write is None else np.empty_like(write)
    given_state = np.zeros_like(states[0])
    for t in reversed(range(q.shape[2])):
        faded = kept[:, :, t, :, None] * states[t]
        dq[:, :, t] = np.einsum("bnhe,bne->bnh", states[t + 1], dout[:, :, t])
        given_state = given_state + q[:, :, t, :, None] * dout[:, :, t, None]
        dadded = np.einsum("bnhe,bnh->bne", given_state, k[:, :, t])
        added = errors[:, :, t] if write is None else write[:, :, t, None] * errors[:, :, t]
        dk[:, :, t] = np.einsum("bnhe,bne->bnh", given_state, added)
        dv[:, :, t] = dadded if write is None else write[:, :, t, None] * dadded
        if dwrite is not None:
            dwrite[:, :, t] = np.einsum("bne,bne->bn", dadded, errors[:, :, t])
            dk[:, :, t] -= np.einsum("bnhe,bne->bnh", faded, dv[:, :, t])
            given_state = given_state - k[:, :, t, :, None] * dv[:, :, t, None]
        dlog[:, :, t] = np.einsum("bnhe,bnhe->bnh", given_state, faded)
        given_state = kept[:, :, t, :, None] * given_state
    return dq, dk, dv, dlog, dwrite


def max_relative_error(value: ArrayLike, reference: np.ndarray) -> float:
    """The largest difference divided by the largest reference value; NaN where the value holds a NaN."""
    return float(np.max(np.abs(np.asarray(value, np.float64) - reference)) / np.max(np.abs(reference)))
