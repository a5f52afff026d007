"""The keys of published config.json files that sizes depend on, with the parameters that the authors count.

Counts are those of the published checkpoints' tensors (of the routers' biases too, but neither of a vision encoder nor
of layers that predict several tokens), which a name's figure rounds, or where a report has them, the report's.
"""

from typing import Any, NamedTuple

KDA = [layer for layer in range(1, 28) if layer % 4 and layer != 27]


class Published(NamedTuple):
    """A config.json, its parameters, and to what part of them the authors rounded."""

    config: dict[str, Any]
    parameters: float
    rounded: float = 0.5


def decoder(
    family: str, hidden: int, feed_forward: int, layers: int, heads: int, kv_heads: int, vocabulary: int, **others: Any
) -> dict[str, Any]:
    return {
        "model_type": family,
        "hidden_size": hidden,
        "intermediate_size": feed_forward,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": vocabulary,
        **others,
    }


LLAMA3 = {"tie_word_embeddings": True, "rope_theta": 500000.0, "rms_norm_eps": 1e-5}
SCALED = {
    **{"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    "original_max_position_embeddings": 8192,
}
YARN = {"rope_type": "yarn", "beta_fast": 32.0, "beta_slow": 1.0}
PUBLISHED = {
    "Llama-3-8B": Published(decoder("llama", 4096, 14336, 32, 32, 8, 128256), 8_030_261_248),
    "llama3.2-1b": Published(
        decoder("llama", 2048, 8192, 16, 32, 8, 128256, head_dim=64, **LLAMA3, rope_scaling={**SCALED, "factor": 32.0}),
        1_235_814_400,
    ),
    "llama3.2-3b": Published(
        decoder(
            "llama", 3072, 8192, 28, 24, 8, 128256, head_dim=128, **LLAMA3, rope_scaling={**SCALED, "factor": 32.0}
        ),
        3_212_749_824,
    ),
    "llama3.1-405b": Published(
        decoder("llama", 16384, 53248, 126, 128, 8, 128256, rope_theta=500000.0, rope_scaling={**SCALED, "factor": 8.0})
        | {"rms_norm_eps": 1e-5},
        405_853_388_800,
    ),
    "Mistral-7B": Published(decoder("mistral", 4096, 14336, 32, 32, 8, 32000, sliding_window=4096), 7_241_732_096),
    "Mixtral-8x7B": Published(
        decoder("mixtral", 4096, 14336, 32, 32, 8, 32000, num_local_experts=8, num_experts_per_tok=2), 46_702_792_704
    ),
    "Mixtral-8x22B": Published(
        decoder("mixtral", 6144, 16384, 56, 48, 8, 32000, num_local_experts=8, num_experts_per_tok=2), 140_620_634_112
    ),
    "MiniMax-M2": Published(  # its page: 229 billion
        decoder("minimax_m2", 3072, 1536, 62, 48, 8, 200064, head_dim=128, num_local_experts=256, use_mtp=True),
        229e9,
        0.5e9,
    ),
    "StarCoder2-3B": Published(
        decoder("starcoder2", 3072, 12288, 30, 24, 2, 49152, use_bias=True, sliding_window=4096, norm_epsilon=1e-5),
        3_030_371_328,
    ),
    "Qwen2-7B": Published(
        decoder("qwen2", 3584, 18944, 28, 28, 4, 152064, use_sliding_window=False, sliding_window=131072),
        7_615_616_512,
    ),
    "qwen3-8b": Published(
        decoder("qwen3", 4096, 12288, 36, 32, 8, 151936, head_dim=128, sliding_window=None, rope_theta=1000000),
        8_190_735_360,
    ),
    "qwen3-32b": Published(
        decoder("qwen3", 5120, 25600, 64, 64, 8, 151936, head_dim=128, sliding_window=None, rope_theta=1000000),
        32_762_123_264,
    ),
    "Qwen3-30B-A3B": Published(
        decoder("qwen3_moe", 2048, 6144, 48, 32, 4, 151936, head_dim=128, num_experts=128, num_experts_per_tok=8)
        | {"moe_intermediate_size": 768, "sliding_window": None},
        30_532_122_624,
    ),
    "Qwen3-VL-8B": Published(  # its language model is that of Qwen3-8B
        {
            "model_type": "qwen3_vl",
            "text_config": decoder("qwen3_vl_text", 4096, 12288, 36, 32, 8, 151936, head_dim=128),
            "vision_config": {"hidden_size": 1152, "depth": 27},
        },
        8_190_735_360,
    ),
    "Qwen3-VL-235B-A22B": Published(  # its language model is that of Qwen3-235B-A22B
        {
            "model_type": "qwen3_vl_moe",
            "tie_word_embeddings": False,
            "text_config": decoder("qwen3_vl_moe_text", 4096, 12288, 94, 64, 4, 151936, head_dim=128)
            | {"moe_intermediate_size": 1536, "num_experts": 128, "num_experts_per_tok": 8},
            "vision_config": {"hidden_size": 1152, "depth": 27},
        },
        235_093_634_560,
    ),
    "qwen3-next-80b-a3b": Published(  # its card: 80 billion
        decoder("qwen3_next", 2048, 5120, 48, 16, 2, 151936, head_dim=256, num_experts=512, num_experts_per_tok=10)
        | {"rope_theta": 10000000, "partial_rotary_factor": 0.25}
        | {"moe_intermediate_size": 512, "shared_expert_intermediate_size": 512, "full_attention_interval": 4}
        | {"linear_num_key_heads": 16, "linear_num_value_heads": 32},
        80e9,
        0.5e9,
    ),
    "Gemma-2-9B": Published(  # its report, table 2: those beside the embedding, which it counts with more rows
        decoder("gemma2", 3584, 14336, 42, 16, 8, 256000, head_dim=256), 8_324_201_984 + 256_000 * 3584
    ),
    "Gemma-2-27B": Published(
        decoder("gemma2", 4608, 36864, 46, 32, 16, 256000, head_dim=128, query_pre_attn_scalar=144),
        26_047_480_320 + 256_000 * 4608,
    ),
    "gemma3-27b": Published(  # its report, table 1: 25,600 million beside the embedding
        {
            "model_type": "gemma3",
            "text_config": {
                "model_type": "gemma3_text",
                "hidden_size": 5376,
                "intermediate_size": 21504,
                "num_attention_heads": 32,
                "num_hidden_layers": 62,
                "num_key_value_heads": 16,
                "head_dim": 128,
                "sliding_window": 1024,
                "query_pre_attn_scalar": 168,
                "rope_scaling": {"rope_type": "linear", "factor": 8.0},
            },
            "vision_config": {"hidden_size": 1152, "num_hidden_layers": 27},
        },
        25_600e6 + 262_208 * 5376,
        0.5e6,
    ),
    "gpt-oss-120b": Published(  # its card, table 1: 116.83 billion
        decoder("gpt_oss", 2880, 2880, 36, 64, 8, 201088, head_dim=64, num_local_experts=128, num_experts_per_tok=4)
        | {"experts_per_token": 4, "sliding_window": 128, "attention_bias": True}
        | {"rope_scaling": {**YARN, "factor": 32.0, "original_max_position_embeddings": 4096, "truncate": False}},
        116_829_156_672,
    ),
    "gpt-oss-20b": Published(  # 20.91 billion
        decoder("gpt_oss", 2880, 2880, 24, 64, 8, 201088, head_dim=64, num_local_experts=32, sliding_window=128),
        20_914_757_184,
    ),
    "OLMo-7B": Published(decoder("olmo", 4096, 11008, 32, 32, 32, 50304), 6_888_095_744),
    "OLMo-2-7B": Published(decoder("olmo2", 4096, 11008, 32, 32, 32, 100352), 7_298_617_344),
    "Olmo-3-7B": Published(decoder("olmo3", 4096, 11008, 32, 32, 32, 100278, sliding_window=4096), 7_298_011_136),
    "deepseek-v3": Published(  # its report: 671 billion
        decoder("deepseek_v3", 7168, 18432, 61, 128, 128, 129280, moe_intermediate_size=2048, n_routed_experts=256)
        | {"n_shared_experts": 1, "num_experts_per_tok": 8, "first_k_dense_replace": 3, "num_nextn_predict_layers": 1}
        | {"kv_lora_rank": 512, "q_lora_rank": 1536, "v_head_dim": 128, "qk_nope_head_dim": 128}
        | {"qk_rope_head_dim": 64},
        671_026_419_200,
    ),
    "kimi-linear-48b-a3b": Published(
        decoder("kimi_linear", 2304, 9216, 27, 32, 32, 163840, head_dim=72, moe_intermediate_size=1024)
        | {"num_experts": 256, "num_experts_per_token": 8, "num_shared_experts": 1, "first_k_dense_replace": 1}
        | {"kv_lora_rank": 512, "q_lora_rank": None, "v_head_dim": 128, "qk_nope_head_dim": 128}
        | {"qk_rope_head_dim": 64}
        | {
            "linear_attn_config": {
                "full_attn_layers": [4, 8, 12, 16, 20, 24, 27],
                "kda_layers": KDA,
                "head_dim": 128,
                "num_heads": 32,
                "short_conv_kernel_size": 4,
            }
        },
        49_122_681_728,
    ),
    "mamba-codestral-7b": Published(  # its announcement: 7,285,403,648
        {"model_type": "mamba2", "hidden_size": 4096, "num_hidden_layers": 64, "num_heads": 128, "head_dim": 64}
        | {"state_size": 128, "n_groups": 8, "expand": 2, "conv_kernel": 4, "vocab_size": 32768}
        | {"use_bias": False, "use_conv_bias": True, "tie_word_embeddings": False},
        7_285_403_648,
    ),
}
