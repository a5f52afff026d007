"""DeepSeek-V3 (DeepSeek-AI 2024, arXiv:2412.19437): latent attention and experts."""

from stripectl.core.replacement import FIGURES, OMITTED, WORK, Replacement
from stripectl.models.decoder_config import decoder, usual_sizes
from stripectl.models.experts import experts_after_dense_layers
from stripectl.models.family import ConfigKeys, Family, ModelConfig
from stripectl.models.latent_attention import LATENT, latent, latent_norms, latent_scale, matrices


def read(keys: ConfigKeys) -> ModelConfig:
    d, layers = keys.size("hidden_size"), keys.size("num_hidden_layers")
    n, h, v, theirs = latent(keys)
    sizes = {"heads": n, "kv_heads": n, "head_dim": h, "v_head_dim": v}
    experts = experts_after_dense_layers(keys, "n_routed_experts")
    attention = f"latent attention of rank {keys.size('kv_lora_rank')}", f"{n} heads of {h} with values of {v}"
    ahead = keys.size("num_mtp_layers", 0)
    return decoder(
        keys,
        feed_forward=experts.active,
        sizes=sizes,
        qkv_bias=False,
        replaced=[
            *experts.replaced(d),
            Replacement(*attention, layers * (theirs - matrices(d, sizes)), WORK),
            *([Replacement("prediction of several tokens", OMITTED, distorts=FIGURES)] * bool(ahead)),
        ],
        attention_scale=latent_scale(keys, h),
        vectors=layers * latent_norms(keys) + experts.sparse_layers * experts.number,  # one router bias per expert
    )


family = Family(
    read,
    usual_sizes(129280, 7168, 18432, 61, 128, 128, moe_intermediate_size=2048, q_lora_rank=1536, **LATENT)
    | {"n_routed_experts": 256, "first_k_dense_replace": 3, "num_mtp_layers": 1},
    {"n_routed_experts": "num_local_experts", "num_mtp_layers": "num_nextn_predict_layers"},
)
