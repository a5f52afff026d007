"""OLMo (Groeneveld et al. 2024, arXiv:2402.00838): layer norms without parameters."""

import functools

from stripectl.models.decoder_config import decoder, usual_sizes
from stripectl.models.family import Family

family = Family(
    functools.partial(decoder, layer_norms=True, norm_scales=False, norm_epsilon=1e-5),
    usual_sizes(50304, 4096, 11008, 32, 32),
)
