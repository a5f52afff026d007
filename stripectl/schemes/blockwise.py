"""Blockwise: memory-efficient attention on one device, and feed-forward and loss in blocks of rows too (Liu and Abbeel
2023, Blockwise Parallel Transformer). Its attention alone is the memory-efficient one; a training step is not.
"""

from dataclasses import replace

from stripectl.schemes import memory_efficient

scheme = replace(memory_efficient.scheme, name="blockwise", paper="https://arxiv.org/abs/2305.19370", chunk=None)
