"""Striped: shard i mod N holds token i (Brandon et al. 2023, striped attention).

Every pair of shards has a causal mask: on the diagonal for keys of the same or an earlier shard, one below the diagonal
for keys of a later shard.
"""

from stripectl.core.layout import Layout

layout = Layout(
    "striped",
    paper="https://arxiv.org/abs/2311.09431",
    firsts=lambda shard, shards, rows: (shard,),
    step=lambda shards: shards,
)
