"""Striped: token i lies on shard i mod N (Brandon et al. 2023, striped attention).

Every pair of shards is causal: on the diagonal for keys of the same or an earlier shard, one below it for a later one.
"""

from stripectl.core.layout import Layout

layout = Layout(
    "striped",
    paper="https://arxiv.org/abs/2311.09431",
    firsts=lambda shard, shards, rows: (shard,),
    step=lambda shards: shards,
)
