"""Latent attention in a config.json (DeepSeek-AI 2024, arXiv:2405.04434): its heads, its parameters, and the parameters
of the projections that stripectl computes instead."""

from collections.abc import Mapping

from stripectl.core.rotary_scaling import yarn_mscale
from stripectl.models.family import ConfigKeys
from stripectl.models.rotary_config import rotary_parameters

LATENT = {  # defaults of DeepSeek-V3 and Kimi-Linear
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
}


def matrices(d: int, sizes: Mapping[str, int]) -> int:
    """Parameters of a layer's projections as stripectl computes them."""
    return d * (sizes["heads"] + sizes["kv_heads"]) * (sizes["head_dim"] + sizes.get("v_head_dim", sizes["head_dim"]))


def latent(keys: ConfigKeys) -> tuple[int, int, int, int]:
    """(heads, elements of a head's queries and keys, elements of its values, parameters of a layer's matrices) of
    latent attention (DeepSeek-AI 2024, arXiv:2405.04434)."""
    d, n, v, low = (keys.size(x) for x in ("hidden_size", "num_attention_heads", "v_head_dim", "kv_lora_rank"))
    plain, rotary, low_q = (
        keys.size("qk_nope_head_dim"),
        keys.size("qk_rope_head_dim"),
        keys.optional_size("q_lora_rank"),
    )
    h = plain + rotary
    queries = d * low_q + low_q * n * h if low_q else d * n * h
    return n, h, v, queries + d * (low + rotary) + low * n * (plain + v) + n * v * d


def latent_scale(keys: ConfigKeys, head_dim: int) -> float | None:
    """The factor of scores, which `mscale_all_dim` of YaRN multiplies by a square; else None, for head_dim^-0.5."""
    own = rotary_parameters(keys)
    factor, share = own.number("factor"), own.number("mscale_all_dim")
    return head_dim**-0.5 * yarn_mscale(factor, share) ** 2 if factor and share else None


def latent_norms(keys: ConfigKeys) -> int:
    """Parameters of a layer's norms inside latent attention."""
    return keys.size("kv_lora_rank") + (keys.optional_size("q_lora_rank") or 0)
