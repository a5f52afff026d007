"""OLMo (Groeneveld et al. 2024, arXiv:2402.00838): layer norms without parameters."""

import functools

from stripectl.models.decoder_config import decoder, usual_sizes
from stripectl.models.family import Family

family = Family(
    functools.partial(decoder, centered_norms=True, norm_scales=False),
    usual_sizes(50304, 4096, 11008, 32, 32, rms_norm_eps=1e-5),
)
