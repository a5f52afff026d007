"""OLMo 3: OLMo 2 with windows in three of four layers."""

from stripectl.core.config_json import ConfigKeys, Family, ModelConfig
from stripectl.core.decoder_config import decoder, every, masks_of, usual_sizes


def read(keys: ConfigKeys) -> ModelConfig:
    return decoder(keys, masks=masks_of(keys, every(keys, 4, "sliding_attention")), query_key_norms="all")


family = Family(read, usual_sizes(50304, 4096, 11008, 32, 32, sliding_window=4096))
