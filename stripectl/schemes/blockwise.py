"""Blockwise: feed-forward and loss also run in blocks of rows, on one device (Liu and Abbeel 2023).

The Blockwise Parallel Transformer: its attention equals memory_efficient; its training step needs less memory.
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
