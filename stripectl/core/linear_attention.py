"""The attention of a model's layers: softmax, linear with a recurrence, or a pattern of both."""

import reprlib
from typing import NamedTuple

import numpy as np

from stripectl.core.recurrence import Recurrence, recurrences
from stripectl.errors import BadInput
from stripectl.util.files import unknown_name
from stripectl.util.json import is_list, is_mapping

ATTENTIONS = ("softmax", "linear")
LAYERS = {"S": "softmax", "L": "linear"}  # one letter per layer, for a model with both kinds: `LLLS`
FEATURES = ("none", "elu")  # the feature map of linear attention: queries and keys unchanged, or 1 + elu(x)
PER_HEAD = "per-head"  # the decays of TransNormerLLM
CONSTANT = "decay"  # the recurrence with a constant gate per head, which the field `decay` names
MAX_CONVOLVED = 64  # tokens of a short convolution
MAX_LINEAR_SIZE = 2**16  # heads, and elements of a head
LINEAR = ("attention", "recurrence", "decay", "features")  # fields of a workload or model that describe it


class LinearHeads(NamedTuple):
    """The heads of a hybrid model's linear layers, where they differ from the heads of its softmax layers: the number
    of value heads, the number of key heads (and query heads), the elements of a key and of a value."""

    heads: int
    key_heads: int
    head_dim: int
    v_head_dim: int

    @classmethod
    def of(cls, content: object) -> "LinearHeads":
        """From a mapping, or from a list, the form of a tuple in JSON.

        Raises:
            BadInput: not four positive integers with these names.
        """
        if isinstance(content, cls):
            content = list(content)
        is_whole = is_list(content) and len(content) == len(cls._fields)
        named = dict(zip(cls._fields, content, strict=True)) if is_list(content) and is_whole else content
        if not is_mapping(named) or set(named) != set(cls._fields):
            raise BadInput(f"linear_heads need {', '.join(cls._fields)}, not {reprlib.repr(content)}.")
        if any(type(value) is not int or not 1 <= value <= MAX_LINEAR_SIZE for value in named.values()):
            raise BadInput(f"linear_heads are integers from 1 to {MAX_LINEAR_SIZE}, not {reprlib.repr(content)}.")
        return cls(**named)


def kind_fields(kind: str, linear_heads: LinearHeads | None) -> dict[str, object]:
    """The fields of a hybrid model, or of its workload, that differ for its layers of one kind."""
    if kind != "linear":
        softmax = {"recurrence": CONSTANT, "decay": "1", "features": FEATURES[0], "key_heads": None, "d_conv": None}
        return {"attention": kind, "linear_heads": None, **softmax}
    linear: dict[str, object] = {"attention": kind, "sinks": False, "soft_cap": None}
    if linear_heads is None:
        return linear
    return {**linear, "linear_heads": None, "kv_heads": linear_heads.heads, **linear_heads._asdict()}


def pattern_of(attention: object) -> list[str]:
    """The kinds of layers in the pattern that repeats, in order: one for `linear`, four for `LLLS`.

    Raises:
        BadInput: neither a kind of attention nor a pattern of both.
    """
    if isinstance(attention, str) and attention in ATTENTIONS:
        return [attention]
    if not isinstance(attention, str) or set(attention) != set(LAYERS):
        known = " or ".join(ATTENTIONS)
        raise BadInput(f"{attention!r} is not an attention. Write {known}, or one letter per layer, such as LLLS.")
    return [LAYERS[letter] for letter in attention]


def check_linear(
    attention: str = ATTENTIONS[0],
    recurrence: str = CONSTANT,
    decay: str = "1",
    features: str = FEATURES[0],
    *,
    heads: int,
    layers: int | None,
    d_conv: int | None = None,
) -> None:
    """Do nothing where a model, or one layer, can have such attention.

    Raises:
        BadInput: a name is unknown, or the values do not fit together.
    """
    pattern = pattern_of(attention)
    parse_decay(decay, heads)
    if features not in FEATURES:
        raise unknown_name("feature map", features, FEATURES)
    if recurrence != CONSTANT and recurrence not in recurrences.names():
        raise unknown_name("recurrence", recurrence, [CONSTANT, *recurrences.names()])
    if "linear" not in pattern and (recurrence, decay, features) != (CONSTANT, "1", FEATURES[0]):
        raise BadInput("softmax attention has no recurrence, decay or feature map. Add --attention linear.")
    if recurrence != CONSTANT and (decay, features) != ("1", FEATURES[0]):
        raise BadInput(f"{recurrence} computes its gates from the input. Omit --decay and --feature-map.")
    if d_conv is not None and (type(d_conv) is not int or not 2 <= d_conv <= MAX_CONVOLVED):
        raise BadInput(f"d_conv must be an integer from 2 to {MAX_CONVOLVED}, not {reprlib.repr(d_conv)}.")
    if d_conv is not None and recurrence == CONSTANT:
        raise BadInput("only layers with a recurrence have a short convolution. Omit d_conv, or add a recurrence.")
    if layers and layers % len(pattern):
        near = -(-layers // len(pattern)) * len(pattern)
        raise BadInput(f"{layers} layers are not a multiple of the pattern {attention}. Try --layers {near}.")


def recurrence_of(name: str) -> Recurrence | None:
    """The recurrence with this name; None for the constant gate."""
    return None if name == CONSTANT else recurrences[name]


def kernel_family(attention: str, recurrence: str) -> str:
    """The family of kernels for such attention: softmax, linear with a constant gate, or gated. A pattern gets the
    family of its linear layers."""
    if "linear" not in pattern_of(attention):
        return ATTENTIONS[0]
    return "linear" if recurrence == CONSTANT else "gated"


def parse_decay(text: object, heads: int) -> np.ndarray:
    """The logarithm of the decay per token, float64 (heads,), from a number in (0, 1], or from `per-head`: head h of H,
    counted from 1, keeps exp(-2^(-8 h / H)) per token (the first layer of TransNormerLLM as released, Qin et al. 2023,
    arXiv:2307.14995).

    Raises:
        BadInput: not a decay.
    """
    if text == PER_HEAD:
        return -(2.0 ** (-8 * np.arange(1, heads + 1) / heads))
    try:
        kept = float(text) if isinstance(text, str) else 0.0
    except ValueError:
        kept = 0.0
    if not 0 < kept <= 1:
        raise BadInput(f"{text!r} is not a decay. Write the factor per token, such as 0.99 or 1, or {PER_HEAD}.")
    return np.full(heads, np.log(kept))
