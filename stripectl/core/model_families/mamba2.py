"""Mamba-2 (Dao and Gu 2024, arXiv:2405.21060): a state-space model, computed as linear attention."""

from stripectl.core.config_json import ConfigKeys, Family, ModelConfig, Replacement
from stripectl.core.decoder_config import LINEAR_STAND_IN, attention_of, matrices, one_embedding

NO_FEED_FORWARD = 128  # for a layer without a feed-forward, because a step's model has one, and `tensor` divides it


def read(keys: ConfigKeys) -> ModelConfig:
    """Keys and queries have as many elements as the state, values fill the width, and there is no feed-forward."""
    d, layers, vocabulary = (keys.size(x) for x in ("hidden_size", "num_hidden_layers", "vocab_size"))
    n, h, state, groups = (keys.size(x) for x in ("num_heads", "head_dim", "state_size", "n_groups"))
    width, kernel = n * h, keys.size("conv_kernel")
    if width != keys.size("expand") * d:
        raise keys.refuse("num_heads", f"{keys.size('expand') * d} (expand x hidden_size) divided by head_dim")
    own = {"heads": width // state, "head_dim": state} if width % state == 0 else {"heads": n, "head_dim": h}
    own["kv_heads"] = own["heads"]
    theirs, masks = d * (3 * width + 2 * groups * state + n), ["linear"] * layers
    more = theirs - matrices(d, own) - 3 * d * NO_FEED_FORWARD
    shared = f"state-space layers of {n} heads of {h} with a state of {state}"
    found = [
        Replacement(shared, f"{LINEAR_STAND_IN}, {own['heads']} heads of {own['head_dim']}", layers * more),
        Replacement("no feed-forward", f"a feed-forward of size {NO_FEED_FORWARD}"),
        *one_embedding(keys),
    ]
    convolved = width + 2 * groups * state
    biases = (2 * width + 2 * groups * state + n + d) * keys.flag("use_bias") + convolved * keys.flag("use_conv_bias")
    return ModelConfig(
        sizes={
            **{"hidden": d, "layers": layers, "vocabulary": vocabulary, "feed_forward": NO_FEED_FORWARD},
            **own,
            **attention_of(masks),
        },
        masks=masks,
        replaced=found,
        vector_parameters=layers * (convolved * kernel + biases + 3 * n + width + d) + d,
    )


family = Family(
    read,
    {"vocab_size": 32768, "hidden_size": 4096, "num_hidden_layers": 64, "num_heads": 128, "head_dim": 64}
    | {"state_size": 128, "expand": 2, "conv_kernel": 4, "n_groups": 8, "use_conv_bias": True},
)
