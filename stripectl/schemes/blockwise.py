"""Blockwise: feed-forward and loss in blocks of rows too, on one device (Liu and Abbeel 2023).

The Blockwise Parallel Transformer: its attention alone is the memory-efficient one; its training step is not.
"""

from dataclasses import replace

from stripectl.schemes import memory_efficient

scheme = replace(
    memory_efficient.scheme,
    name="blockwise",
    title="blockwise attention",
    paper="https://arxiv.org/abs/2305.19370",
    chunk=None,
)
