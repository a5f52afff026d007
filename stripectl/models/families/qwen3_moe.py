"""Qwen3 with experts (Yang et al. 2025, arXiv:2505.09388) in place of the feed-forward."""

from stripectl.models.decoder_config import decoder, layer_masks, usual_sizes
from stripectl.models.experts import experts_in_every_layer
from stripectl.models.family import ConfigKeys, Family, ModelConfig

EXPERTS = {"num_local_experts": "num_experts"}


def read(keys: ConfigKeys) -> ModelConfig:
    """All layers have a window, or no layer has."""
    experts = experts_in_every_layer(keys, "num_local_experts", "moe_intermediate_size")
    kind = "sliding_attention" if keys.flag("use_sliding_window") else "full_attention"
    return decoder(
        keys,
        masks=layer_masks(keys, [kind] * keys.size("num_hidden_layers")),
        feed_forward=experts.active,
        query_key_norm="head",
        replaced=experts.replaced(keys.size("hidden_size")),
    )


family = Family(
    read,
    usual_sizes(151936, 2048, 6144, 24, 32, 4, use_sliding_window=False, sliding_window=4096)
    | {"moe_intermediate_size": 768, "num_local_experts": 128, "num_experts_per_tok": 8, "decoder_sparse_step": 1},
    EXPERTS,
)
