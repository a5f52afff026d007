"""OLMo (Groeneveld et al. 2024, arXiv:2402.00838): its norms have no parameters."""

import functools

from stripectl.models.decoder_config import decoder, usual_sizes
from stripectl.models.family import Family

family = Family(functools.partial(decoder, scales=False), usual_sizes(50304, 4096, 11008, 32, 32))
