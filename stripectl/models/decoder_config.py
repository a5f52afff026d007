"""How a decoder's config.json is read: attention, a feed-forward and sliding windows.

All families except Mamba-2 are such decoders, some with `experts` or `latent_attention`. A family's file names the
differences, and the defaults of keys that a file may omit. The defaults come from the configuration classes in the
`transformers` package, 5.24.0; a test compares them.

D hidden size, F feed-forward, N heads, K key/value heads, H head_dim.
"""

import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from stripectl.core.architecture import NORM_EPSILON, ROTARY_BASE, Architecture
from stripectl.core.layer_kinds import mask_pattern
from stripectl.core.layout import plain_mask
from stripectl.core.linear_attention import CONSTANT, LinearHeads
from stripectl.core.replacement import Replacement
from stripectl.core.rotary_scaling import YarnScaling, yarn_growth
from stripectl.models.family import ConfigKeys, ModelConfig
from stripectl.util.json import Json

ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}
YARN, FIRST_LENGTH = "yarn", "original_max_position_embeddings"
SCALINGS = {  # kind of scaling -> key of each field of RotaryScaling
    "linear": {"factor": "factor"},
    "llama3": {
        "factor": "factor",
        "low": "low_freq_factor",
        "high": "high_freq_factor",
        "length": FIRST_LENGTH,
    },
}
KINDS = {"full_attention": "causal", "linear_attention": "linear", "sliding_attention": "sliding"}


def decoder(
    keys: ConfigKeys,
    *,
    masks: Sequence[str] | None = None,
    qkv_bias: bool | None = None,
    out_bias: bool | None = None,
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
    """A decoder with attention and a feed-forward. The arguments give the masks of its layers, the biases of its
    projections (None: as `attention_bias` says), the sizes, replaced parts and vectors of the family, its linear layers
    and sinks, and other `parts`, as in Architecture."""
    layers = keys.size("num_hidden_layers")
    own = {"feed_forward": feed_forward or keys.size("intermediate_size"), **(sizes or config_heads(keys))}
    masks = masks or ["causal"] * layers
    activation, others = activation_of(keys)
    attention = attention_of(masks, recurrence, linear_heads)
    architecture = {
        "norm_epsilon": keys.number("rms_norm_eps") or NORM_EPSILON,
        "tied": keys.flag("tie_word_embeddings"),
        "qkv_bias": keys.flag("attention_bias") if qkv_bias is None else qkv_bias,
        "output_bias": keys.flag("attention_bias") if out_bias is None else out_bias,
        "feed_forward_bias": keys.flag("mlp_bias"),
        "activation": activation,
        "logit_cap": keys.number("final_logit_softcapping") or None,
        **attention_scale(keys, own["head_dim"]),
        **rotary_fields(keys, own["head_dim"]),
        **parts,
    }
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


def rotary_parameters(keys: ConfigKeys) -> ConfigKeys:
    """The keys of rotary positions; of full layers, where they differ by layer."""
    own = keys.part("rope_parameters" if keys.value("rope_scaling") is None else "rope_scaling")
    return own.part("full_attention") if "full_attention" in own.content else own


def rotary_kind(own: ConfigKeys) -> str:
    """The name of the scaling of rotary angles.

    Raises:
        BadInput: it is not a name.
    """
    name = "rope_type" if own.value("rope_type") else "type"
    kind = own.value(name) or "default"
    if not isinstance(kind, str):
        raise own.refuse(name, "the name of a scaling of rotary angles")
    return kind


def rotary_scaling(keys: ConfigKeys, own: ConfigKeys) -> dict[str, dict[str, float]]:
    """The scaling of rotary angles, where stripectl computes it."""
    kind = rotary_kind(own)
    if kind == YARN:
        return {"rotary_scaling": yarn_scaling(keys, own)}
    if kind not in SCALINGS:
        return {}
    values = {name: own.number(key) for name, key in SCALINGS[kind].items()}
    for name, value in values.items():
        if value is None:
            raise own.refuse(SCALINGS[kind][name], f"a number, because the rope_type is {kind}")
    return {"rotary_scaling": {name: value for name, value in values.items() if value is not None}}


def yarn_scaling(keys: ConfigKeys, own: ConfigKeys) -> dict[str, float]:
    """The fields of YarnScaling; without a factor it is the growth of the longest sequence."""
    longest = keys.number("max_position_embeddings")
    length = own.number(FIRST_LENGTH) or keys.number(FIRST_LENGTH) or longest
    if length is None:
        raise own.refuse(FIRST_LENGTH, f"a number, because the rope_type is {YARN}")
    factor = own.number("factor") or (longest or length) / length
    growth, above, below = (own.number(name) for name in ("attention_factor", "mscale", "mscale_all_dim"))
    if growth is None and above and below:
        growth = yarn_growth(factor, above) / yarn_growth(factor, below)
    whole = own.value("truncate") is None or own.flag("truncate")
    turns = own.number("beta_fast") or 32.0, own.number("beta_slow") or 1.0
    found = YarnScaling(factor, length, *turns, growth, whole)
    return {name: value for name, value in found._asdict().items() if value is not None}


def replaced_rotation(keys: ConfigKeys) -> list[Replacement]:
    """Scaled rotary angles that stripectl does not compute."""
    own = rotary_parameters(keys)
    kind = rotary_kind(own)
    return (
        []
        if kind in ("default", YARN, *SCALINGS)
        else [Replacement(f"rotary angles scaled as {reprlib.repr(kind)}", "unscaled")]
    )


def rotary_fields(keys: ConfigKeys, head_dim: int) -> dict[str, Any]:
    """The base of the rotary angles, and the elements of a head that are rotated, where some are not."""
    own = rotary_parameters(keys)
    base = own.number("rope_theta") or keys.number("rope_theta") or ROTARY_BASE
    share = own.number("partial_rotary_factor") or keys.number("partial_rotary_factor") or 1.0
    size = keys.optional_size("rotary_dim") or int(share * head_dim)
    if size != head_dim and (size % 2 or not 2 <= size < head_dim):
        name = "rotary_dim" if keys.value("rotary_dim") is not None else "partial_rotary_factor"
        raise keys.refuse(name, f"a part of head_dim {head_dim} with an even number of elements")
    return {"rotary_base": base, **rotary_scaling(keys, own), **({} if size == head_dim else {"rotary_dim": size})}


def with_window_rotation(config: ModelConfig, keys: ConfigKeys, usual: float) -> ModelConfig:
    """A model whose layers with windows have a rotary base of their own, `usual` where the file names none, and angles
    that are not scaled."""
    parameters = keys.part("rope_parameters").part("sliding_attention")
    base = parameters.number("rope_theta") or usual
    scaled = "rotary_scaling" in config.sizes or any("rotary angles" in each.part for each in config.replaced)
    if {*config.masks} == {"causal"} or (base == config.sizes["rotary_base"] and not scaled):
        return config
    return replace(config, sizes={**config.sizes, "window_rotary_base": base})


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
