"""What the attention of a model's layers is: softmax, linear with a recurrence, or a pattern of both."""

import numpy as np

from stripectl.core.recurrence import Recurrence, recurrences
from stripectl.errors import BadInput
from stripectl.util.files import unknown_name

ATTENTIONS = ("softmax", "linear")
LAYERS = {"S": "softmax", "L": "linear"}  # a letter a layer of a model whose layers are not alike: `LLLS`
FEATURES = ("none", "elu")  # of linear attention: queries and keys as they are, or 1 + elu of them
TNL = "tnl"  # the decays of TransNormerLLM, a head each
CONSTANT = "decay"  # the recurrence whose gate is a constant per head, which `decay` names
LINEAR = ("attention", "recurrence", "decay", "features")  # what a workload or a model says of it


def pattern_of(attention: str) -> list[str]:
    """The kinds of layers, in their order, that are there again and again: of `linear` one, of `LLLS` four.

    Raises:
        BadInput: neither a kind of attention nor a pattern of both.
    """
    if attention in ATTENTIONS:
        return [attention]
    if not isinstance(attention, str) or set(attention) != set(LAYERS):
        known = " or ".join(ATTENTIONS)
        raise BadInput(f"{attention!r} is not an attention. Write {known}, or a letter a layer of both, as LLLS.")
    return [LAYERS[letter] for letter in attention]


def check_linear(
    attention: str = ATTENTIONS[0],
    recurrence: str = CONSTANT,
    decay: str = "1",
    features: str = FEATURES[0],
    *,
    heads: int,
    layers: int | None,
) -> None:
    """Nothing where a model, or one layer, can have such attention.

    Raises:
        BadInput: something is not known, or does not go together.
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
        raise BadInput(f"{recurrence} makes its gates from the input. Leave --decay and --feature-map out.")
    if layers and layers % len(pattern):
        near = -(-layers // len(pattern)) * len(pattern)
        raise BadInput(f"{layers} layers are no whole number of {attention}. Try --layers {near}.")


def recurrence_of(name: str) -> Recurrence | None:
    """The recurrence of such a name; None of the one with a constant gate."""
    return None if name == CONSTANT else recurrences[name]


def kernel_family(attention: str, recurrence: str) -> str:
    """The family of kernels that compute such attention: softmax, linear with a constant gate, or gated; of a pattern
    that of its linear layers."""
    if "linear" not in pattern_of(attention):
        return ATTENTIONS[0]
    return "linear" if recurrence == CONSTANT else "gated"


def parse_decay(text: str, heads: int) -> np.ndarray:
    """The logarithm of the decay of a token, float64 (heads,): of a number in (0, 1], or of `tnl`, by which head h of H
    keeps exp(-2^(-8 h / H)), h from 1 (Qin et al. 2023, arXiv:2307.14995, as released; of the first layer).

    Raises:
        BadInput: not a decay.
    """
    if text == TNL:
        return -(2.0 ** (-8 * np.arange(1, heads + 1) / heads))
    try:
        kept = float(text)
    except (TypeError, ValueError):
        kept = 0.0
    if not isinstance(text, str) or not 0 < kept <= 1:
        raise BadInput(f"{text!r} is not a decay. Write what is left after a token, 0.99 or 1, or {TNL}.")
    return np.full(heads, np.log(kept))
