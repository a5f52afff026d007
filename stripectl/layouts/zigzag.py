"""Zigzag: shard i holds chunks i and 2N-1-i of 2N chunks (Zhu 2024, ring-flash-attention; also Llama 3, section 3.3).

A cheap chunk is paired with an expensive one, so every shard has equal work, and half of each pair of chunks is live.
"""

from stripectl.core.layout import Layout

layout = Layout(
    "zigzag",
    paper="https://github.com/zhuzilin/ring-flash-attention; https://arxiv.org/abs/2407.21783",
    firsts=lambda shard, shards, rows: (shard * (rows // 2), (2 * shards - 1 - shard) * (rows // 2)),
    step=lambda shards: 1,
    pieces=2,
)
