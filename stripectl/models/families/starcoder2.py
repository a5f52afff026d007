"""StarCoder2 (Lozhkov et al. 2024, arXiv:2402.19173): layer norms, biases, and a feed-forward of two matrices."""

from stripectl.models.decoder_config import decoder, layer_masks, usual_sizes
from stripectl.models.family import ConfigKeys, Family, ModelConfig


def read(keys: ConfigKeys) -> ModelConfig:
    masks = layer_masks(keys, ["sliding_attention"] * keys.size("num_hidden_layers"))
    return decoder(keys, masks=masks, layer_norms=True, norm_biases=True, gated=False)


family = Family(
    read,
    usual_sizes(49152, 3072, 12288, 30, 24, 2, rms_norm_eps=1e-5, hidden_act="gelu_pytorch_tanh")
    | {"attention_bias": True, "mlp_bias": True, "sliding_window": None, "tie_word_embeddings": True},
    {"rms_norm_eps": "norm_epsilon", "attention_bias": "use_bias", "mlp_bias": "use_bias"},
)
