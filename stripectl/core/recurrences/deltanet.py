"""DeltaNet: the delta rule, parallel over the length (Yang et al. 2024, section 3).

S_t = (I - b_t k_t k_t^T) S_{t-1} + b_t k_t v_t^T,    o_t = S_t^T q_t
"""

from stripectl.core.recurrence import Recurrence

recurrence = Recurrence("deltanet", title="DeltaNet", paper="https://arxiv.org/abs/2406.06484", gate="none", delta=True)
