"""How a decoder's config.json is read: attention and a gated feed-forward, sliding windows, experts, latent attention.

All families except Mamba-2 are such decoders. A family's file names the differences, and the defaults of keys that a
file may omit. The defaults come from the configuration classes in the `transformers` package, 5.24.0; a test
compares them.

D hidden size, F feed-forward, N heads, K key/value heads, H head_dim.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from stripectl.core.config_json import ConfigKeys, ModelConfig
from stripectl.core.linear_attention import CONSTANT, LinearHeads
from stripectl.core.replacement import OMITTED, WORK, Replacement

LATENT = {  # defaults of DeepSeek-V3 and Kimi-Linear
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
}
KINDS = {"full_attention": "causal", "linear_attention": "linear", "sliding_attention": "sliding"}


def decoder(
    keys: ConfigKeys,
    *,
    masks: Sequence[str] | None = None,
    qkv_bias: bool | None = None,
    out_bias: bool | None = None,
    norms: int = 2,
    query_key_norms: str = "",
    feed_forward: int | None = None,
    sizes: Mapping[str, Any] | None = None,
    replaced: Sequence[Replacement] = (),
    vectors: int = 0,
    recurrence: str = CONSTANT,
    linear_heads: LinearHeads | None = None,
    d_conv: int | None = None,
) -> ModelConfig:
    """A decoder with attention and a gated feed-forward. The arguments give the biases of projections (None: as
    `attention_bias` says), the number of norms of D elements per layer (with one more after the last layer, if there
    are any), the norms of queries and keys (`head`: one for all heads, `all`: over all elements), and the sizes,
    replaced parts and vectors of the family."""
    layers = keys.size("num_hidden_layers")
    own = {"feed_forward": feed_forward or keys.size("intermediate_size"), **(sizes or config_heads(keys))}
    vectors += norms_and_biases(keys, own, norms, query_key_norms, qkv_bias, out_bias)
    masks = masks or ["causal"] * layers
    attention = attention_of(masks, recurrence, linear_heads)
    return ModelConfig(
        sizes={
            "hidden": keys.size("hidden_size"),
            "layers": layers,
            "vocabulary": keys.size("vocab_size"),
            **own,
            **attention,
            **({"d_conv": d_conv} if attention and d_conv and d_conv > 1 else {}),
        },
        masks=masks,
        replaced=(*replaced, *replaced_norms(norms, query_key_norms), *one_embedding(keys), *replaced_windows(masks)),
        vector_parameters=vectors,
    )


def norms_and_biases(
    keys: ConfigKeys,
    sizes: Mapping[str, int],
    norms: int,
    query_key_norms: str,
    qkv_bias: bool | None,
    out_bias: bool | None,
) -> int:
    """Parameters of the norms of a model and of the biases of its projections; the arguments are as of `decoder`."""
    d, layers = keys.size("hidden_size"), keys.size("num_hidden_layers")
    n, k, h = sizes["heads"], sizes["kv_heads"], sizes["head_dim"]
    biased = keys.flag("attention_bias")
    of_layer = d * norms + {"": 0, "head": 2 * h, "all": (n + k) * h}[query_key_norms]
    of_layer += (n + 2 * k) * h * (biased if qkv_bias is None else qkv_bias)
    of_layer += d * (biased if out_bias is None else out_bias)
    of_layer += (2 * sizes["feed_forward"] + d) * keys.flag("mlp_bias")
    return layers * of_layer + d * (norms > 0)


def replaced_norms(norms: int, query_key_norms: str) -> list[Replacement]:
    """The norms that stripectl omits."""
    found = [Replacement("norms of queries and keys", OMITTED)] if query_key_norms else []
    return found + [Replacement("norms after attention and feed-forward", OMITTED)] * (norms > 2)


def one_embedding(keys: ConfigKeys) -> list[Replacement]:
    """The matrix that both embeds tokens and makes logits, where a model shares it: stripectl has two matrices."""
    if not keys.flag("tie_word_embeddings"):
        return []
    size = keys.size("hidden_size") * keys.size("vocab_size")
    return [Replacement("one matrix for embedding and logits", "two", -size)]


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


def replaced_windows(masks: Sequence[str]) -> list[Replacement]:
    """Sliding windows of layers, which are replaced because a workload has one mask for all layers."""
    found = sorted({mask for mask in masks if mask.startswith("sliding:")})
    if not found:
        return []
    count = sum(mask in found for mask in masks)
    instead = f"every layer has --mask; try {found[0]}" if count == len(masks) else "every layer has --mask"
    part, own = f"{found[0]} in {count} of {len(masks)} layers", {"layers": count, "of_layers": len(masks)}
    return [Replacement(part, instead, distorts=WORK, mask=found[0], **own)]


def layer_masks(keys: ConfigKeys, usual: Sequence[str], window: str = "sliding_window") -> list[str]:
    """The mask of every layer from its `layer_types`, or `usual` where the file has none."""
    kinds = keys.layer_kinds("layer_types", usual, tuple(KINDS))
    size = keys.optional_size(window)
    sliding = f"sliding:{size}" if size else "causal"
    return [sliding if kind == "sliding_attention" else KINDS[kind] for kind in kinds]


def every(keys: ConfigKeys, period: int, others: str, last: str = "full_attention") -> list[str]:
    """Layers of one kind, with another kind at every `period`-th layer."""
    return [others if (i + 1) % period else last for i in range(keys.size("num_hidden_layers"))]


class Experts(NamedTuple):
    """Layers of experts: how many experts, how many of them compute a token, the feed-forward size of each and of the
    shared experts together, and how many layers have experts; the other layers have a feed-forward of size `dense`."""

    number: int
    chosen: int
    size: int
    shared: int = 0
    sparse_layers: int = 0
    dense_layers: int = 0
    dense: int = 0

    @property
    def active(self) -> int:
        """The total feed-forward size that computes a token."""
        return self.chosen * self.size + self.shared

    def replaced(self, d: int, gates: int = 0) -> list[Replacement]:
        """The replacement by a feed-forward as large as a token's experts in every layer; `gates` are parameters per
        layer in addition to experts and router."""
        theirs = d * self.number + 3 * d * (self.number * self.size + self.shared) + gates
        dense = 3 * d * self.dense_layers * (self.dense - self.active)
        more = self.sparse_layers * (theirs - 3 * d * self.active) + dense
        shared = f" and shared experts of size {self.shared}" if self.shared else ""
        part = f"{self.number} experts of size {self.size}{shared}, {self.chosen} per token"
        if self.dense_layers and self.dense != self.active:
            part += f", but a feed-forward of size {self.dense} in {self.dense_layers} layers"
        return [Replacement(part, f"a feed-forward of size {self.active}", more, WORK)]


def experts_in_every_layer(keys: ConfigKeys, count: str, size: str, shared: int = 0) -> Experts:
    """The experts of a family whose layers all have experts; the keys with their number and their feed-forward size.

    Raises:
        BadInput: some layers have a plain feed-forward.
    """
    if keys.value("mlp_only_layers") or keys.optional_size("decoder_sparse_step") not in (None, 1):
        raise keys.refuse("mlp_only_layers", "empty, with a decoder_sparse_step of 1")
    layers, chosen = keys.size("num_hidden_layers"), keys.size("num_experts_per_tok")
    return Experts(keys.size(count), chosen, keys.size(size), shared, layers)


def experts_after_dense_layers(keys: ConfigKeys, count: str) -> Experts:
    """The experts of a family whose first layers have a plain feed-forward; `count` is the key with their number."""
    layers, size = keys.size("num_hidden_layers"), keys.size("moe_intermediate_size")
    dense = min(layers, keys.size("first_k_dense_replace", 0))
    shared = keys.size("n_shared_experts", 0) * size
    chosen, plain = keys.size("num_experts_per_tok"), keys.size("intermediate_size")
    return Experts(keys.size(count), chosen, size, shared, layers - dense, dense, plain)


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


def latent_norms(keys: ConfigKeys) -> int:
    """Parameters of a layer's norms inside latent attention."""
    return keys.size("kv_lora_rank") + (keys.optional_size("q_lora_rank") or 0)


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
        **others,
    }
