"""Qwen2 (Yang et al. 2024, arXiv:2407.10671): queries, keys and values have a bias."""

import functools
from typing import Any

from stripectl.models.decoder_config import KINDS, decoder, layer_masks, usual_sizes
from stripectl.models.family import ConfigKeys, Family, ModelConfig

QWEN = {"use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 28}


def read(keys: ConfigKeys, **own: Any) -> ModelConfig:
    """Windows, where they are used, are in the layers after the first `max_window_layers`."""
    first, layers = keys.size("max_window_layers", 0), keys.size("num_hidden_layers")
    used = keys.flag("use_sliding_window") and keys.value("sliding_window") is not None
    usual = ["sliding_attention" if used and i >= first else "full_attention" for i in range(layers)]
    masks = (
        layer_masks(keys, usual) if used else ["causal" for _ in keys.layer_kinds("layer_types", usual, tuple(KINDS))]
    )
    return decoder(keys, masks=masks, **own)


family = Family(
    functools.partial(read, qkv_bias=True, output_bias=False), usual_sizes(151936, 4096, 22016, 32, 32, 32, **QWEN)
)
