"""Mamba-2: a state space as linear attention with a number per token for its gate (Dao and Gu 2024, section 3).

    S_t = a_t S_{t-1} + B_t (dt_t x_t)^T,    y_t = S_t^T C_t,    a_t = exp(-exp(A) dt_t)

with B for keys, C for queries and dt x for values. Groups of value heads share a head of keys and queries. With a
constant gate per head this is RetNet's retention (Sun et al. 2023, arXiv:2307.08621), which `--decay` computes.
"""

from stripectl.core.recurrence import Recurrence

recurrence = Recurrence(
    "mamba2",
    title="Mamba-2",
    paper="https://arxiv.org/abs/2405.21060",
    gate="scalar",
    gate_activation="softplus",
)
