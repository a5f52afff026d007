"""Gemma 2 (Gemma Team 2024, arXiv:2408.00118): windows in every other layer, four norms, and soft caps."""

import functools
from typing import Any

from stripectl.models.decoder_config import decoder, every, layer_masks, usual_sizes
from stripectl.models.family import ConfigKeys, Family, ModelConfig

GEMMA = {"head_dim": 256, "tie_word_embeddings": True, "sliding_window": 4096}
GEMMA |= {"query_pre_attn_scalar": 256, "hidden_activation": "gelu_pytorch_tanh"}


def read(keys: ConfigKeys, period: int, **own: Any) -> ModelConfig:
    masks = layer_masks(keys, every(keys, period, "sliding_attention"))
    return decoder(keys, masks=masks, norms="both", scaled_embedding=True, **own)


family = Family(
    functools.partial(read, period=2),
    usual_sizes(256000, 2304, 9216, 26, 8, 4, attn_logit_softcapping=50.0, final_logit_softcapping=30.0, **GEMMA),
)
