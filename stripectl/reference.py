"""Dense attention in float64, values and gradients: what every plan is compared with. NumPy only, no tiles."""

import numpy as np

from stripectl.layout import Window


def kept(queries: int, keys: int, window: Window, starts: np.ndarray | None = None) -> np.ndarray:
    """bool (queries, keys): what a mask keeps for queries at the end of the keys' positions, whose documents begin at
    `starts`."""
    position, key = np.arange(keys - queries, keys)[:, None], np.arange(keys)
    keep = np.ones((queries, keys), bool)
    if window.left is not None:
        keep &= key >= position - window.left
    if window.right is not None:
        keep &= key <= position + window.right
    if starts is not None:
        keep &= np.searchsorted(starts, position, "right") == np.searchsorted(starts, key, "right")
    return keep


def dense(
    q_BNTH, k_BKSH, v_BKSH, dout_BNTH, window: Window, starts: np.ndarray | None = None
) -> tuple[np.ndarray, ...]:
    """(out, dq, dk, dv) in float64 for positions in natural order; whole score matrix in memory, head by head."""
    q, k, v, dout = (np.asarray(x, np.float64) for x in (q_BNTH, k_BKSH, v_BKSH, dout_BNTH))
    out, dq, dk, dv = np.empty_like(q), np.empty_like(q), np.zeros_like(k), np.zeros_like(v)
    scale, group = q.shape[3] ** -0.5, q.shape[1] // k.shape[1]
    keep = kept(q.shape[2], k.shape[2], window, starts)
    for b, n in np.ndindex(q.shape[:2]):
        m = n // group
        s_TS = np.where(keep, q[b, n] @ k[b, m].T * scale, -np.inf)
        p_TS = np.exp(s_TS - s_TS.max(1, keepdims=True))
        p_TS /= p_TS.sum(1, keepdims=True)
        out[b, n] = p_TS @ v[b, m]
        dv[b, m] += p_TS.T @ dout[b, n]
        dp_TS = dout[b, n] @ v[b, m].T
        ds_TS = p_TS * (dp_TS - (dout[b, n] * out[b, n]).sum(1, keepdims=True)) * scale
        dq[b, n] = ds_TS @ k[b, m]
        dk[b, m] += ds_TS.T @ q[b, n]
    return out, dq, dk, dv


def max_relative_error(value, reference) -> float:
    """The largest difference over the largest reference value; NaN where the value holds one."""
    return float(np.max(np.abs(np.asarray(value, np.float64) - reference)) / np.max(np.abs(reference)))
