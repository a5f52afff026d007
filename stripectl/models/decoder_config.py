"""How a decoder's config.json is read: attention, a feed-forward and sliding windows; `rotary_config` reads its rotary
positions.

All families except Mamba-2 are such decoders, some with `experts` or `latent_attention`. A family's file names the
differences, and the defaults of keys that a file may omit. The defaults come from the configuration classes in the
`transformers` package, 5.24.0; a test compares them.

D hidden size, F feed-forward, N heads, K key/value heads, H head_dim.
"""

import reprlib
from collections.abc import Mapping, Sequence
from typing import Any

from stripectl.core.architecture import NORM_EPSILON, Architecture
from stripectl.core.layer_kinds import mask_pattern
from stripectl.core.layout import plain_mask
from stripectl.core.linear_attention import CONSTANT, LinearHeads
from stripectl.core.replacement import Replacement
from stripectl.models.family import ConfigKeys, ModelConfig
from stripectl.models.rotary_config import replaced_rotation, rotary_fields
from stripectl.util.json import Json

ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}
KINDS = {"full_attention": "causal", "linear_attention": "linear", "sliding_attention": "sliding"}


def decoder(
    keys: ConfigKeys,
    *,
    masks: Sequence[str] | None = None,
    feed_forward: int | None = None,
    sizes: Mapping[str, Any] | None = None,
    replaced: Sequence[Replacement] = (),
    vectors: int = 0,
    recurrence: str = CONSTANT,
    linear_heads: LinearHeads | None = None,
    d_conv: int | None = None,
    sinks: bool = False,
    **parts: Any,
) -> ModelConfig:
    """A decoder with attention and a feed-forward. The arguments give the masks of its layers, the sizes, replaced
    parts and vectors of the family, its linear layers and sinks, and `parts` of its architecture that no key gives."""
    layers = keys.size("num_hidden_layers")
    own = {"feed_forward": feed_forward or keys.size("intermediate_size"), **(sizes or config_heads(keys))}
    masks = masks or ["causal"] * layers
    activation, others = activation_of(keys)
    attention = attention_of(masks, recurrence, linear_heads)
    architecture = {"activation": activation, **parts_of_keys(keys, own["head_dim"]), **parts}
    return ModelConfig(
        sizes={
            "hidden": keys.size("hidden_size"),
            "layers": layers,
            "vocabulary": keys.size("vocab_size"),
            **own,
            **attention,
            **architecture,
            "sinks": sinks,
            "soft_cap": keys.number("attn_logit_softcapping") if keys.is_set("attn_logit_softcapping") else None,
            **({"d_conv": d_conv} if attention and d_conv and d_conv > 1 else {}),
            **masks_field(masks),
        },
        masks=masks,
        replaced=(*replaced, *others, *replaced_rotation(keys)),
        vector_parameters=vectors + norms_and_biases(keys, own, Architecture.of(architecture)),
    )


def parts_of_keys(keys: ConfigKeys, head_dim: int) -> dict[str, Json]:
    """Fields of an Architecture whose keys most families share."""
    biases = dict.fromkeys(("qkv_bias", "output_bias"), keys.flag("attention_bias"))
    return {
        **biases,
        "feed_forward_bias": keys.flag("mlp_bias"),
        "norm_epsilon": keys.number("rms_norm_eps") or NORM_EPSILON,
        "tied": keys.flag("tie_word_embeddings"),
        "logit_cap": keys.number("final_logit_softcapping") or None,
        **attention_scale(keys, head_dim),
        **rotary_fields(keys, head_dim),
    }


def norms_and_biases(keys: ConfigKeys, sizes: Mapping[str, int], parts: Architecture) -> int:
    """Parameters of the norms of a model and of the biases of its projections."""
    d, layers = keys.size("hidden_size"), keys.size("num_hidden_layers")
    n, k, h, f = (sizes[name] for name in ("heads", "kv_heads", "head_dim", "feed_forward"))
    norm = d * (parts.norm_scales + parts.norm_biases)
    of_layer = norm * 2 * (parts.norms_before + parts.norms_after)
    of_layer += {"none": 0, "head": 2 * h, "all": (n + k) * h}[parts.query_key_norm]
    of_layer += (n + 2 * k) * h * parts.qkv_bias + d * parts.output_bias
    of_layer += (f * (1 + parts.gated) + d) * parts.feed_forward_bias
    return layers * of_layer + norm


def activation_of(keys: ConfigKeys) -> tuple[str, list[Replacement]]:
    """The activation of a feed-forward, and its replacement where it is another one."""
    name = "hidden_act" if keys.value("hidden_activation") is None else "hidden_activation"
    given = keys.value(name) or "silu"
    if not isinstance(given, str):
        raise keys.refuse(name, "the name of an activation")
    if given in ACTIVATIONS:
        return ACTIVATIONS[given], []
    return "silu", [Replacement(f"activation {reprlib.repr(given)}", "silu")]


def attention_scale(keys: ConfigKeys, head_dim: int) -> dict[str, float]:
    """The factor of scores, where it is not head_dim^-0.5."""
    size = keys.number("query_pre_attn_scalar")
    return {} if size in (None, head_dim) else {"attention_scale": size**-0.5}


def config_heads(keys: ConfigKeys) -> dict[str, int]:
    """Heads; by default as many key/value heads, and head_dim = D / heads."""
    n = keys.size("num_attention_heads")
    h = keys.optional_size("head_dim") or keys.size("hidden_size") // n
    if h < 1:
        raise keys.refuse("num_attention_heads", "at most hidden_size")
    return {"heads": n, "kv_heads": keys.optional_size("num_key_value_heads") or n, "head_dim": h}


def attention_of(masks: Sequence[str], recurrence: str, linear_heads: LinearHeads | None = None) -> dict[str, Any]:
    """Fields of a Model for layers that are linear or not: the shortest pattern of letters that repeats."""
    linear = [mask == "linear" for mask in masks]
    if not any(linear):
        return {}
    letters = "".join("L" if each else "S" for each in linear)
    lengths = (n for n in range(1, len(letters) + 1) if len(letters) % n == 0)
    pattern = next(letters[:n] for n in lengths if letters[:n] * (len(letters) // n) == letters)
    if all(linear):
        return {"attention": "linear", "recurrence": recurrence}
    return {"attention": pattern, "recurrence": recurrence, "linear_heads": linear_heads}


def masks_field(masks: Sequence[str]) -> dict[str, Json]:
    """The masks of a model's layers as in its file, where some have windows; a linear layer's is causal."""
    own = ["causal" if mask == "linear" else plain_mask(mask) for mask in masks]
    return {} if {*own} == {"causal"} else {"layer_masks": [run.to_json() for run in mask_pattern(own)]}


def layer_masks(keys: ConfigKeys, usual: Sequence[str], window: str = "sliding_window") -> list[str]:
    """The mask of every layer from its `layer_types`, or `usual` where the file has none."""
    kinds = keys.layer_kinds("layer_types", usual, tuple(KINDS))
    size = keys.optional_size(window)
    sliding = f"sliding:{size}" if size else "causal"
    return [sliding if kind == "sliding_attention" else KINDS[kind] for kind in kinds]


def every(keys: ConfigKeys, period: int, others: str, last: str = "full_attention") -> list[str]:
    """Layers of one kind, with another kind at every `period`-th layer."""
    return [others if (i + 1) % period else last for i in range(keys.size("num_hidden_layers"))]


def usual_sizes(
    vocabulary: int, hidden: int, feed_forward: int, layers: int, heads: int, kv_heads: int | None = None, **others: Any
) -> dict[str, Any]:
    """Defaults that nearly all families share."""
    return {
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "intermediate_size": feed_forward,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "rms_norm_eps": 1e-6,
        **others,
    }
