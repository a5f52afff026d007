"""Gemma 3 (Gemma Team 2025, arXiv:2503.19786): windows in five of six layers, norms of queries and keys."""

from dataclasses import replace

from stripectl.core.replacement import Replacement
from stripectl.models.decoder_config import usual_sizes
from stripectl.models.families import gemma2
from stripectl.models.family import ConfigKeys, Family, ModelConfig

LOCAL_BASE = 10000  # of the rotary angles of layers with windows


def read(keys: ConfigKeys) -> ModelConfig:
    """Layers with windows have a rotary base of their own."""
    found = gemma2.read(keys, keys.size("sliding_window_pattern"), query_key_norm="head")
    own = keys.part("rope_parameters").part("sliding_attention").number("rope_theta")
    local, base = own or keys.number("rope_local_base_freq") or LOCAL_BASE, found.sizes["rotary_base"]
    if local == base or set(found.masks) == {"causal"}:
        return found
    other = Replacement(f"rotary base {local:.0f} of layers with windows", f"{base:.0f}")
    return replace(found, replaced=[*found.replaced, other])


family = Family(
    read, usual_sizes(262208, 2304, 9216, 26, 8, 4, sliding_window_pattern=6, rope_theta=1e6, **gemma2.GEMMA)
)
