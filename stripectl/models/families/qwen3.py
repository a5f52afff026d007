"""Qwen3 (Yang et al. 2025, arXiv:2505.09388): Qwen2 with norms of queries and keys in place of biases."""

import functools

from stripectl.models.decoder_config import usual_sizes
from stripectl.models.families import qwen2
from stripectl.models.family import Family

family = Family(
    functools.partial(qwen2.read, query_key_norm="head"),
    usual_sizes(151936, 4096, 22016, 32, 32, 32, head_dim=128, **qwen2.QWEN),
)
