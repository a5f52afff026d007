"""The language model of Qwen3-VL (Bai et al. 2025, arXiv:2511.21631): Qwen3 without windows."""

import functools

from stripectl.models.decoder_config import decoder, usual_sizes
from stripectl.models.family import Family

family = Family(
    functools.partial(decoder, query_key_norm="head"),
    usual_sizes(151936, 4096, 22016, 32, 32, 32, head_dim=128, rope_theta=500000.0),
)
