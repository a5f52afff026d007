"""Mamba-2 (Dao and Gu 2024, arXiv:2405.21060): a state-space model, as linear attention with gates."""

from stripectl.models.decoder_config import attention_of
from stripectl.models.family import ConfigKeys, Family, ModelConfig

UNUSED = 1  # the size of a feed-forward that layers do not have


def read(keys: ConfigKeys) -> ModelConfig:
    """Groups are heads of keys and queries, with as many elements as the state; heads of values share them."""
    d, layers, vocabulary = (keys.size(x) for x in ("hidden_size", "num_hidden_layers", "vocab_size"))
    n, h, state, groups = (keys.size(x) for x in ("num_heads", "head_dim", "state_size", "n_groups"))
    width, kernel = n * h, keys.size("conv_kernel")
    if width != keys.size("expand") * d:
        raise keys.refuse("num_heads", f"{keys.size('expand') * d} (expand x hidden_size) divided by head_dim")
    if n % groups:
        raise keys.refuse("n_groups", f"a divisor of num_heads {n}")
    own = {"heads": n, "kv_heads": n, "head_dim": state, "v_head_dim": h, "key_heads": groups, "d_conv": kernel}
    masks = ["linear"] * layers
    convolved = width + 2 * groups * state
    biases = (2 * width + 2 * groups * state + n + d) * keys.flag("use_bias") + convolved * keys.flag("use_conv_bias")
    return ModelConfig(
        sizes={
            **{"hidden": d, "layers": layers, "vocabulary": vocabulary, "feed_forward": UNUSED},
            **own,
            "tied": keys.flag("tie_word_embeddings"),
            "linear_gate": "mamba2",
            "norm_epsilon": keys.number("layer_norm_epsilon"),
            "no_feed_forward": True,
            **attention_of(masks, "mamba2"),
        },
        masks=masks,
        replaced=(),
        vector_parameters=layers * (convolved * kernel + biases + 3 * n + width + d) + d,
    )


family = Family(
    read,
    {"vocab_size": 32768, "hidden_size": 4096, "num_hidden_layers": 64, "num_heads": 128, "head_dim": 64}
    | {"state_size": 128, "expand": 2, "conv_kernel": 4, "n_groups": 8, "use_conv_bias": True}
    | {"layer_norm_epsilon": 1e-5},
)
