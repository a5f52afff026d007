"""Llama (Touvron et al. 2023)."""

from stripectl.core.config_json import Family
from stripectl.core.decoder_config import decoder, usual_sizes

family = Family(decoder, usual_sizes(32000, 4096, 11008, 32, 32))
