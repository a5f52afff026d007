"""Qwen3-Next: a gated delta rule in three of four layers, gated attention in the fourth, experts in all."""

from stripectl.core.linear_attention import LinearHeads
from stripectl.models.decoder_config import config_heads, decoder, every, layer_masks, usual_sizes
from stripectl.models.experts import experts_in_every_layer
from stripectl.models.family import ConfigKeys, Family, ModelConfig


def read(keys: ConfigKeys) -> ModelConfig:
    """Gated delta rule in three of four layers (Yang et al. 2024, arXiv:2412.06464); gated attention in the fourth."""
    d = keys.size("hidden_size")
    masks = layer_masks(keys, every(keys, keys.size("full_attention_interval"), "linear_attention"))
    count, sizes = masks.count("linear"), config_heads(keys)
    kh, vh, kn, vn = (
        keys.size(f"linear_{x}") for x in ("key_head_dim", "value_head_dim", "num_key_heads", "num_value_heads")
    )
    shared = keys.size("shared_expert_intermediate_size")
    experts = experts_in_every_layer(keys, "num_experts", "moe_intermediate_size", shared)
    convolution = keys.size("linear_conv_kernel_dim")
    convolved = convolution * (2 * kn * kh + vn * vh)
    norms = -count * 2 * sizes["head_dim"]  # norms of queries and keys, which only softmax layers have
    return decoder(
        keys,
        masks=masks,
        feed_forward=experts.active,
        query_key_norm="head",
        attention_gate=True,
        linear_gate="silu",
        replaced=experts.replaced(d, gates=d),
        recurrence="gdn",
        d_conv=convolution,
        linear_heads=LinearHeads(vn, kn, kh, vh),
        vectors=count * (convolved + 2 * vn + vh) + norms,
    )


family = Family(
    read,
    usual_sizes(151936, 2048, 5632, 48, 16, 2, head_dim=256, partial_rotary_factor=0.25)
    | {"linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_num_key_heads": 16}
    | {"linear_num_value_heads": 32, "linear_conv_kernel_dim": 4, "decoder_sparse_step": 1}
    | {"moe_intermediate_size": 512, "shared_expert_intermediate_size": 512, "num_experts": 512}
    | {"num_experts_per_tok": 10, "full_attention_interval": 4},
)
