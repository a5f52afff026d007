"""GPT-OSS (OpenAI 2025, arXiv:2508.10925): windows in every other layer, attention sinks, experts."""

from stripectl.models.decoder_config import decoder, every, layer_masks, usual_sizes
from stripectl.models.experts import experts_in_every_layer
from stripectl.models.family import ConfigKeys, Family, ModelConfig

BASE = 150000.0
YARN = {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False}
YARN |= {"original_max_position_embeddings": 4096, "rope_theta": BASE}


def read(keys: ConfigKeys) -> ModelConfig:
    d, layers, size = (keys.size(name) for name in ("hidden_size", "num_hidden_layers", "intermediate_size"))
    experts = experts_in_every_layer(keys, "num_local_experts", "intermediate_size")
    sinks, biases = keys.size("num_attention_heads"), experts.number * (2 * size + d + 1)
    return decoder(
        keys,
        masks=layer_masks(keys, every(keys, 2, "sliding_attention")),
        feed_forward=experts.active,
        replaced=experts.replaced(d),
        sinks=True,
        vectors=layers * (sinks + biases),
    )


family = Family(
    read,
    usual_sizes(201088, 2880, 2880, 36, 64, 8, head_dim=64, attention_bias=True, rope_theta=BASE)
    | {"num_local_experts": 128, "num_experts_per_tok": 4, "sliding_window": 128, "rms_norm_eps": 1e-5}
    | {"rope_parameters": YARN, "max_position_embeddings": 131072},
    {"num_local_experts": "num_experts"},
)
