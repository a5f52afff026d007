"""Gated linear attention: a gate per token and key element (Yang et al. 2023, section 4.1).

S_t = Diag(a_t) S_{t-1} + k_t v_t^T,    o_t = S_t^T q_t,    a_t = sigmoid(x_t W)^(1/16)
"""

from stripectl.core.recurrence import Recurrence

recurrence = Recurrence(
    "gla",
    title="gated linear attention",
    paper="https://arxiv.org/abs/2312.06635",
    gate="vector",
    gate_activation="logsigmoid",
)
