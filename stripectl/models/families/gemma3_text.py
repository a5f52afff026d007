"""Gemma 3 (Gemma Team 2025, arXiv:2503.19786): windows in five of six layers, norms of queries and keys."""

from stripectl.models.decoder_config import usual_sizes
from stripectl.models.families import gemma2
from stripectl.models.family import ConfigKeys, Family, ModelConfig
from stripectl.models.rotary_config import with_window_rotation

LOCAL_BASE = 10000.0  # of the rotary angles of layers with windows


def read(keys: ConfigKeys) -> ModelConfig:
    """Layers with windows have a rotary base of their own."""
    found = gemma2.read(keys, keys.size("sliding_window_pattern"), query_key_norm="head")
    return with_window_rotation(found, keys, keys.number("rope_local_base_freq") or LOCAL_BASE)


family = Family(
    read, usual_sizes(262208, 2304, 9216, 26, 8, 4, sliding_window_pattern=6, rope_theta=1e6, **gemma2.GEMMA)
)
