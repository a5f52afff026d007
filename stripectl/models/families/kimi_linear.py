"""Kimi-Linear (Kimi Team 2025, arXiv:2510.26692): a gated delta rule in three of four layers, then latent attention."""

from stripectl.core.linear_attention import LinearHeads
from stripectl.core.replacement import WORK, Replacement
from stripectl.models.decoder_config import decoder, layer_masks, usual_sizes
from stripectl.models.experts import experts_after_dense_layers
from stripectl.models.family import ConfigKeys, Family, ModelConfig
from stripectl.models.latent_attention import LATENT, latent, latent_norms, matrices
from stripectl.util.json import is_list

LATER_PARTS = ("routed_expert_hidden_size", "mla_use_output_gate")  # of Kimi K3, whose files name this family


def read(keys: ConfigKeys) -> ModelConfig:
    """A recurrence of its own heads in three of four layers; else heads that multiply and send as much as heads of
    latent attention."""
    for name in LATER_PARTS:
        if keys.value(name):
            raise keys.refuse(name, "absent, because Kimi-Linear has no such part")
    d, layers = keys.size("hidden_size"), keys.size("num_hidden_layers")
    masks = numbered_masks(keys)
    count = masks.count("linear")
    n, h, v, theirs = latent(keys)
    own = {"heads": n, "kv_heads": n, "head_dim": h, "v_head_dim": v}
    ln, lh, kernel = linear_sizes(keys)
    experts = experts_after_dense_layers(keys, "num_local_experts")
    return decoder(
        keys,
        masks=masks,
        feed_forward=experts.active,
        sizes=own,
        qkv_bias=False,
        replaced=[
            *experts.replaced(d),
            Replacement(
                f"latent attention with keys of {h} and values of {v}",
                f"{n} heads of such keys and values",
                (layers - count) * (theirs - matrices(d, own)),
                WORK,
            ),
        ],
        rotary_layers="none",
        linear_gate="sigmoid",
        recurrence="kda",
        d_conv=kernel,
        linear_heads=LinearHeads(ln, ln, lh, lh),
        vectors=count * (3 * kernel * ln * lh + ln * lh + ln + lh)
        + (layers - count) * latent_norms(keys)
        + experts.sparse_layers * experts.number,  # one router bias per expert
    )


def linear_sizes(keys: ConfigKeys) -> list[int]:
    """The number and the elements of the recurrence's heads, and the tokens of its short convolutions."""
    part = keys.part("linear_attn_config")
    names = {
        "num_heads": "linear_num_heads",
        "head_dim": "linear_head_dim",
        "short_conv_kernel_size": "linear_conv_kernel_dim",
    }
    return [part.size(own) if own in part.content else keys.size(usual) for own, usual in names.items()]


def numbered_masks(keys: ConfigKeys) -> list[str]:
    """The layers' masks from two lists of layers, counted from 1, or from `layer_types`."""
    part, layers = keys.part("linear_attn_config").content, keys.size("num_hidden_layers")
    lists = [part.get(name) for name in ("full_attn_layers", "kda_layers")]
    if keys.value("layer_types") is None and all(each is not None for each in lists):
        numbers = [number for each in lists if is_list(each) for number in each]
        if not all(map(is_list, lists)) or not all(type(x) is int for x in numbers):
            raise keys.refuse("linear_attn_config", "lists of layers, counted from 1")
        if sorted(numbers) != list(range(1, layers + 1)):
            raise keys.refuse("linear_attn_config", f"two lists that together name each of the {layers} layers once")
        full = {*(lists[0] or ())}
        return ["causal" if i + 1 in full else "linear" for i in range(layers)]
    usual = ["full_attention" if i and i % 4 == 0 else "linear_attention" for i in range(layers)]
    return layer_masks(keys, usual)


family = Family(
    read,
    usual_sizes(163840, 2304, 9216, 27, 32, 32, moe_intermediate_size=1024, **LATENT)
    | {"num_local_experts": 256, "first_k_dense_replace": 1, "rms_norm_eps": 1e-5}
    | {"linear_head_dim": 128, "linear_num_heads": 32, "linear_conv_kernel_dim": 4},
    {
        "num_local_experts": "num_experts",
        "num_experts_per_tok": "num_experts_per_token",
        "n_shared_experts": "num_shared_experts",
    },
)
