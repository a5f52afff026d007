"""Gemma 3 (Gemma Team 2025, arXiv:2503.19786): windows in five of six layers, norms of queries and keys."""

from stripectl.models.decoder_config import usual_sizes
from stripectl.models.families import gemma2
from stripectl.models.family import ConfigKeys, Family, ModelConfig


def read(keys: ConfigKeys) -> ModelConfig:
    return gemma2.read(keys, keys.size("sliding_window_pattern"), query_key_norm="head")


family = Family(read, usual_sizes(262208, 2304, 9216, 26, 8, 4, sliding_window_pattern=6, **gemma2.GEMMA))
