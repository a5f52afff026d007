"""The language model of Qwen3-VL (Bai et al. 2025, arXiv:2511.21631) with experts: `qwen3_moe` with other defaults."""

from stripectl.models.decoder_config import usual_sizes
from stripectl.models.families import qwen3_moe
from stripectl.models.family import Family

family = Family(
    qwen3_moe.read,
    usual_sizes(151936, 2048, 5632, 24, 16, 16, head_dim=128, tie_word_embeddings=True, rope_theta=500000.0)
    | {"moe_intermediate_size": 1408, "num_local_experts": 60, "num_experts_per_tok": 4, "decoder_sparse_step": 1},
    qwen3_moe.EXPERTS,
)
