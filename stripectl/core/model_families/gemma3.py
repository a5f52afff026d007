"""Gemma 3 with vision: the language model in its `text_config`."""

from stripectl.core.config_json import ConfigKeys, Family, ModelConfig, Replacement
from stripectl.core.decoder_config import NOTHING
from stripectl.core.model_families import gemma3_text


def read(keys: ConfigKeys) -> ModelConfig:
    text = ConfigKeys(keys.path, keys.part("text_config").content, gemma3_text.family.defaults)
    return gemma3_text.read(text, replaced=[Replacement("vision encoder", NOTHING)])


family = Family(read, {})
