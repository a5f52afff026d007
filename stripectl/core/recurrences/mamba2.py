"""Mamba-2: a state-space model as linear attention with one gate per token and head (Dao and Gu 2024, section 3).

    S_t = a_t S_{t-1} + B_t (dt_t x_t)^T,    y_t = S_t^T C_t,    a_t = exp(-exp(A) dt_t)

B are the keys, C the queries and dt x the values. Equal groups of value heads share a head of keys and queries. With a
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
