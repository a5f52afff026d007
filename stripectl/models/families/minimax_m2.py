"""MiniMax-M2 (MiniMax 2025, the config.json and card of MiniMaxAI/MiniMax-M2): experts in every layer."""

from stripectl.core.replacement import FIGURES, OMITTED, Replacement
from stripectl.models.decoder_config import decoder, usual_sizes
from stripectl.models.experts import experts_in_every_layer
from stripectl.models.family import ConfigKeys, Family, ModelConfig
from stripectl.util.json import is_list


def read(keys: ConfigKeys) -> ModelConfig:
    kinds, layers = keys.value("attn_type_list"), keys.size("num_hidden_layers")
    if kinds is not None and (not is_list(kinds) or kinds != [1] * layers):
        raise keys.refuse("attn_type_list", "1 for each layer, softmax attention")
    experts = experts_in_every_layer(keys, "num_local_experts", "intermediate_size")
    ahead = [Replacement("prediction of several tokens", OMITTED, distorts=FIGURES)] * keys.flag("use_mtp")
    return decoder(
        keys,
        feed_forward=experts.active,
        query_key_norm="all",
        replaced=[*experts.replaced(keys.size("hidden_size")), *ahead],
        vectors=layers * experts.number,  # one router bias per expert
    )


family = Family(
    read,
    usual_sizes(
        200064, 3072, 1536, 62, 48, 8, head_dim=128, num_local_experts=256, num_experts_per_tok=8, rope_theta=5e6
    ),
    {"num_local_experts": "num_experts"},
)
