"""GPT-OSS (OpenAI 2025, arXiv:2508.10925): windows in every other layer, attention sinks, experts."""

from stripectl.core.config_json import ConfigKeys, Family, ModelConfig
from stripectl.core.decoder_config import Experts, decoder, every, layer_masks, usual_sizes
from stripectl.core.replacement import OMITTED, Replacement


def read(keys: ConfigKeys) -> ModelConfig:
    d, layers, size = (keys.size(name) for name in ("hidden_size", "num_hidden_layers", "intermediate_size"))
    experts = Experts(keys.size("num_local_experts"), keys.size("num_experts_per_tok"), size, 0, layers)
    sinks, biases = keys.size("num_attention_heads"), experts.number * (2 * size + d + 1)
    return decoder(
        keys,
        masks=layer_masks(keys, every(keys, 2, "sliding_attention")),
        feed_forward=experts.active,
        replaced=[*experts.replaced(d), Replacement("attention sinks", OMITTED)],
        vectors=layers * (sinks + biases),
    )


family = Family(
    read,
    usual_sizes(201088, 2880, 2880, 36, 64, 8, head_dim=64, attention_bias=True)
    | {"num_local_experts": 128, "num_experts_per_tok": 4, "sliding_window": 128},
    {"num_local_experts": "num_experts"},
)
