"""Gated DeltaNet: the delta rule with one gate per token and head (Yang et al. 2024, section 3.1).

S_t = a_t (I - b_t k_t k_t^T) S_{t-1} + b_t k_t v_t^T,    o_t = S_t^T q_t
"""

from stripectl.core.recurrence import Recurrence

recurrence = Recurrence(
    "gdn",
    title="gated DeltaNet",
    paper="https://arxiv.org/abs/2412.06464",
    gate="scalar",
    delta=True,
    gate_activation="softplus",
)
