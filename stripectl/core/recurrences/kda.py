"""Kimi Delta Attention: the delta rule with a gate per token and key element (Kimi Team 2025, section 3).

S_t = (I - b_t k_t k_t^T) Diag(a_t) S_{t-1} + b_t k_t v_t^T,    o_t = S_t^T q_t
"""

from stripectl.core.recurrence import Recurrence

recurrence = Recurrence(
    "kda",
    title="Kimi Delta Attention",
    paper="https://arxiv.org/abs/2510.26692",
    gate="vector",
    delta=True,
    gate_activation="softplus",
)
