"""Mixtral (Jiang et al. 2024, arXiv:2401.04088): Mistral with experts in place of the feed-forward."""

from stripectl.models.decoder_config import decoder, layer_masks, usual_sizes
from stripectl.models.experts import experts_in_every_layer
from stripectl.models.family import ConfigKeys, Family, ModelConfig


def read(keys: ConfigKeys) -> ModelConfig:
    experts = experts_in_every_layer(keys, "num_local_experts", "intermediate_size")
    return decoder(
        keys,
        masks=layer_masks(keys, ["sliding_attention"] * keys.size("num_hidden_layers")),
        feed_forward=experts.active,
        replaced=experts.replaced(keys.size("hidden_size")),
    )


family = Family(
    read,
    usual_sizes(32000, 4096, 14336, 32, 32, 8, sliding_window=None, rope_theta=1e6, rms_norm_eps=1e-5)
    | {"num_local_experts": 8, "num_experts_per_tok": 2},
    {"num_local_experts": "num_experts"},
)
