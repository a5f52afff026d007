"""OLMo 3: OLMo 2 with windows in three of four layers."""

from stripectl.core.config_json import ConfigKeys, Family, ModelConfig
from stripectl.core.decoder_config import decoder, every, layer_masks, usual_sizes


def read(keys: ConfigKeys) -> ModelConfig:
    return decoder(keys, masks=layer_masks(keys, every(keys, 4, "sliding_attention")), query_key_norms="all")


family = Family(read, usual_sizes(50304, 4096, 11008, 32, 32, sliding_window=4096))
