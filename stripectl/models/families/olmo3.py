"""OLMo 3: OLMo 2 with windows in three of four layers, whose rotary angles are not scaled."""

from stripectl.models.decoder_config import decoder, every, layer_masks, usual_sizes
from stripectl.models.family import ConfigKeys, Family, ModelConfig
from stripectl.models.rotary_config import with_window_rotation


def read(keys: ConfigKeys) -> ModelConfig:
    masks = layer_masks(keys, every(keys, 4, "sliding_attention"))
    found = decoder(keys, masks=masks, norms="after", query_key_norm="all")
    return with_window_rotation(found, keys, found.sizes["rotary_base"])


family = Family(
    read, usual_sizes(50304, 4096, 11008, 32, 32, sliding_window=4096, rope_theta=500000.0, rms_norm_eps=1e-5)
)
