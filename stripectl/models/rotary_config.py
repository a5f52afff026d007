"""How the rotary positions of a decoder's config.json are read: their base, their scaling, and the part of a head that
is rotated."""

import reprlib
from dataclasses import replace

from stripectl.core.architecture import ROTARY_BASE
from stripectl.core.replacement import Replacement
from stripectl.core.rotary_scaling import yarn_mscale
from stripectl.models.family import ConfigKeys, ModelConfig
from stripectl.util.json import Json

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
    """The fields of YarnScaling, of which an absent one has the value of Peng et al. 2023; the usual factor is the
    model's longest sequence divided by the first length."""
    longest = keys.number("max_position_embeddings")
    length = own.number(FIRST_LENGTH) or keys.number(FIRST_LENGTH) or longest
    if length is None:
        raise own.refuse(FIRST_LENGTH, f"a number, because the rope_type is {YARN}")
    factor = own.number("factor") or (longest or length) / length
    mscale, above, below = (own.number(name) for name in ("attention_factor", "mscale", "mscale_all_dim"))
    if mscale is None and above and below:
        mscale = yarn_mscale(factor, above) / yarn_mscale(factor, below)
    return {
        "factor": factor,
        "length": length,
        "fast": own.number("beta_fast") or 32.0,
        "slow": own.number("beta_slow") or 1.0,
        **({} if mscale is None else {"attention_factor": mscale}),
        "whole": own.value("truncate") is None or own.flag("truncate"),
    }


def replaced_rotation(keys: ConfigKeys) -> list[Replacement]:
    """Scaled rotary angles that stripectl does not compute."""
    own = rotary_parameters(keys)
    kind = rotary_kind(own)
    return (
        []
        if kind in ("default", YARN, *SCALINGS)
        else [Replacement(f"rotary angles scaled as {reprlib.repr(kind)}", "unscaled")]
    )


def rotary_fields(keys: ConfigKeys, head_dim: int) -> dict[str, Json]:
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
