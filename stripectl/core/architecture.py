"""How a model's layers differ from those of LLaMA (Touvron et al. 2023), which a model without these fields has."""

import reprlib
from collections.abc import Sequence
from dataclasses import dataclass, fields

from stripectl.errors import BadInput
from stripectl.util.files import unknown_name
from stripectl.util.json import Json, is_mapping

QUERY_KEY_NORMS = ("none", "head", "all")
NORMS = ("before", "after", "both")


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """Parts of a decoder, of which each has the value of LLaMA where it is not given.

    `query_key_norm`: layers of softmax attention have norms of queries and keys before their rotation, with the root
    mean square of each head and one scale for all heads (`head`: Qwen 3, Gemma 3), or of all heads of a token together
    (`all`: OLMo 2).
    `norms`: a layer has norms of hidden states `before` attention and feed-forward, `after` each of them (OLMo 2), or
    `both` (Gemma). The scale of a norm is stored as such: where a checkpoint has an offset w of a scale 1 + w, as
    Gemma's has, its initial value is 1 + w, and a step is the same because scales do not decay.
    `scaled_embedding`: the embedding is multiplied by the square root of the hidden size (Gemma).
    `tied`: one matrix embeds tokens and makes logits.
    """

    query_key_norm: str = QUERY_KEY_NORMS[0]
    norms: str = NORMS[0]
    scaled_embedding: bool = False
    tied: bool = False

    def __post_init__(self) -> None:
        check_choice("query_key_norm", self.query_key_norm, QUERY_KEY_NORMS)
        check_choice("norms", self.norms, NORMS)
        for name, value in vars(self).items():
            if isinstance(getattr(type(self), name), bool) and not isinstance(value, bool):
                raise BadInput(f"{name} must be true or false, not {reprlib.repr(value)}.")

    @property
    def norms_before(self) -> bool:
        """Whether the inputs of attention and feed-forward have norms."""
        return self.norms != "after"

    @property
    def norms_after(self) -> bool:
        """Whether the results of attention and feed-forward have norms."""
        return self.norms != "before"

    @classmethod
    def of(cls, content: object) -> "Architecture":
        """From a mapping of the names of fields to their values.

        Raises:
            BadInput: it is not, or a value is wrong.
        """
        if isinstance(content, cls):
            return content
        if not is_mapping(content) or not set(content) <= {*FIELDS}:
            raise BadInput(
                f"architecture must be a mapping with keys of {', '.join(FIELDS)}, not {reprlib.repr(content)}."
            )
        return cls(**content)

    def to_json(self) -> dict[str, Json]:
        """The fields that differ from LLaMA's."""
        return {name: value for name, value in vars(self).items() if value != getattr(LLAMA, name)}


def check_choice(name: str, value: object, known: Sequence[str]) -> None:
    """Do nothing for a known value of a field.

    Raises:
        BadInput: the value is another one.
    """
    if not isinstance(value, str):
        raise BadInput(f"{name} must be {' or '.join(known)}, not {reprlib.repr(value)}.")
    if value not in known:
        raise unknown_name(name, value, known)


LLAMA = Architecture()
FIELDS = tuple(field.name for field in fields(Architecture))
