"""Contiguous: shard i holds the i-th contiguous piece of the sequence (Liu et al. 2023, ring attention).

Under a causal mask the last shard attends to every key and the first only to its own, so the last shard sets the pace.
"""

from stripectl.core.layout import Layout

layout = Layout(
    "contiguous",
    paper="https://arxiv.org/abs/2310.01889",
    firsts=lambda shard, shards, rows: (shard * rows,),
    step=lambda shards: 1,
)
