"""Llama (Touvron et al. 2023)."""

from stripectl.models.decoder_config import decoder, usual_sizes
from stripectl.models.family import Family

family = Family(decoder, usual_sizes(32000, 4096, 11008, 32, 32))
