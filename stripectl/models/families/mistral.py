"""Mistral (Jiang et al. 2023, arXiv:2310.06825): all layers have a window, or no layer has."""

from stripectl.models.decoder_config import decoder, layer_masks, usual_sizes
from stripectl.models.family import ConfigKeys, Family, ModelConfig


def read(keys: ConfigKeys) -> ModelConfig:
    return decoder(keys, masks=layer_masks(keys, ["sliding_attention"] * keys.size("num_hidden_layers")))


family = Family(read, usual_sizes(32000, 4096, 14336, 32, 32, 8, sliding_window=4096))
