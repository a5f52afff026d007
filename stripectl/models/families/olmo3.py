"""OLMo 3: OLMo 2 with windows in three of four layers."""

from stripectl.models.decoder_config import decoder, every, layer_masks, usual_sizes
from stripectl.models.family import ConfigKeys, Family, ModelConfig


def read(keys: ConfigKeys) -> ModelConfig:
    return decoder(
        keys, masks=layer_masks(keys, every(keys, 4, "sliding_attention")), norms="after", query_key_norm="all"
    )


family = Family(read, usual_sizes(50304, 4096, 11008, 32, 32, sliding_window=4096, rope_theta=500000.0))
