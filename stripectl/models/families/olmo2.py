"""OLMo 2 (OLMo Team 2024, arXiv:2501.00656): norms of queries and keys over all heads."""

import functools

from stripectl.models.decoder_config import decoder, usual_sizes
from stripectl.models.family import Family

family = Family(
    functools.partial(decoder, norms="after", query_key_norm="all"),
    usual_sizes(50304, 4096, 11008, 32, 32, rms_norm_eps=1e-5),
)
