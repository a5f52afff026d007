"""Gemma 3 (Gemma Team 2025, arXiv:2503.19786): windows in five of six layers, norms of queries and keys."""

from stripectl.core.replacement import Replacement
from stripectl.models.decoder_config import usual_sizes
from stripectl.models.families import gemma2
from stripectl.models.family import ConfigKeys, Family, ModelConfig

LOCAL_BASE = 10000  # of the rotary angles of layers with windows


def read(keys: ConfigKeys) -> ModelConfig:
    base = keys.number("rope_theta") or LOCAL_BASE
    other = [Replacement(f"rotary base {LOCAL_BASE} of layers with windows", f"{base:.0f}")] * (base != LOCAL_BASE)
    return gemma2.read(keys, keys.size("sliding_window_pattern"), other, query_key_norm="head")


family = Family(
    read, usual_sizes(262208, 2304, 9216, 26, 8, 4, sliding_window_pattern=6, rope_theta=1e6, **gemma2.GEMMA)
)
