"""How a model's layers differ from LLaMA's layers (Touvron et al. 2023), which a model without these fields has."""

import reprlib
from collections.abc import Sequence
from dataclasses import dataclass, fields

from stripectl.core.rotary_scaling import Scaling, rotary_scaling_of
from stripectl.errors import BadInput
from stripectl.util.files import unknown_name
from stripectl.util.json import Json, is_mapping, is_positive

QUERY_KEY_NORMS = ("none", "head", "all")
NORMS = ("before", "after", "both")
ACTIVATIONS = ("silu", "gelu", "gelu_tanh")  # gelu_tanh: with the approximation by tanh of Hendrycks and Gimpel 2016
LINEAR_GATES = ("none", "silu", "sigmoid", "mamba2")
ROTARY_LAYERS = ("all", "windows", "none")
ROTARY_BASE = 10000.0  # Su et al. 2021
NORM_EPSILON = 1e-5  # of LLaMA 2 and 3
POSITIVE = ("norm_epsilon", "attention_scale", "rotary_base", "window_rotary_base", "logit_cap")
MAX_ROTARY = 2**16


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """Parts of a decoder, of which each has the value of LLaMA where it is not given.

    `query_key_norm`: layers of softmax attention have norms of queries and keys before their rotation, with the root
    mean square of each head and one scale for all heads (`head`: Qwen 3, Gemma 3), or of all heads of a token together
    (`all`: OLMo 2).
    `norms`: a layer has norms of hidden states `before` attention and feed-forward, `after` each of them (OLMo 2), or
    `both` (Gemma). The scale of a norm is stored as such: where a checkpoint has an offset w of a scale 1 + w, as
    Gemma's has, its initial value is 1 + w, and a step is the same because scales do not decay.
    `norm_epsilon`: the number that a norm adds to the mean of squares. `layer_norms`: norms of hidden states subtract
    the mean first (Ba et al. 2016); they have `norm_biases` in StarCoder2, and no `norm_scales` in OLMo 1.
    `scaled_embedding`: the embedding is multiplied by the square root of the hidden size (Gemma).
    `tied`: one matrix embeds tokens and makes logits.
    `qkv_bias`, `output_bias`: the projections to queries, keys and values (Qwen 2), and the projection of the output
    (gpt-oss), of layers of softmax attention have biases; `feed_forward_bias`: the matrices of the feed-forward have.
    `attention_scale`: the factor of scores, head_dim^-0.5 where it is None.
    `rotary_layers`: the layers of softmax attention with rotary positions: `all`, layers with `windows` (Cohere 2), or
    `none` (Kimi-Linear).
    `rotary_base`: the base of the rotary angles; `rotary_dim`: the first elements of a head, which alone are rotated
    (None: all); `rotary_scaling`: how their frequencies are scaled; `window_rotary_base`: the base in layers with
    windows, whose frequencies are then not scaled (Gemma 3).
    `activation` and `gated`: the feed-forward is down(activation(gate x) * up x), or down(activation(up x)).
    `logit_cap`: logits x become cap * tanh(x / cap) (Gemma 2).
    `attention_gate`: the output of layers of softmax attention is multiplied by the sigmoid of a projection
    (Qwen3-Next).
    `linear_gate`: so is the output of linear layers: after its norm, which then has a scale, by the SiLU of a
    projection (`silu`: Qwen3-Next), or by the sigmoid of a projection through a bottleneck as large as a value
    (`sigmoid`: Kimi-Linear); or before a norm over all heads, by a SiLU, after values times a number per head are added
    (`mamba2`).
    `no_feed_forward`: layers have none (Mamba-2); the model's size of feed-forward is then without effect.
    """

    query_key_norm: str = QUERY_KEY_NORMS[0]
    norms: str = NORMS[0]
    norm_epsilon: float = NORM_EPSILON
    layer_norms: bool = False
    norm_scales: bool = True
    norm_biases: bool = False
    scaled_embedding: bool = False
    tied: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    feed_forward_bias: bool = False
    attention_scale: float | None = None
    rotary_layers: str = ROTARY_LAYERS[0]
    rotary_base: float = ROTARY_BASE
    rotary_dim: int | None = None
    rotary_scaling: Scaling | None = None
    window_rotary_base: float | None = None
    activation: str = ACTIVATIONS[0]
    gated: bool = True
    logit_cap: float | None = None
    attention_gate: bool = False
    linear_gate: str = LINEAR_GATES[0]
    no_feed_forward: bool = False

    def __post_init__(self) -> None:
        check_choice("query_key_norm", self.query_key_norm, QUERY_KEY_NORMS)
        check_choice("norms", self.norms, NORMS)
        check_choice("rotary_layers", self.rotary_layers, ROTARY_LAYERS)
        check_choice("activation", self.activation, ACTIVATIONS)
        check_choice("linear_gate", self.linear_gate, LINEAR_GATES)
        for name in POSITIVE:
            value = getattr(self, name)
            if value != getattr(type(self), name) and not is_positive(value):
                raise BadInput(f"{name} must be a positive number, not {reprlib.repr(value)}.")
        size = self.rotary_dim
        if size is not None and (type(size) is not int or size % 2 or not 2 <= size <= MAX_ROTARY):
            raise BadInput(f"rotary_dim must be an even number of elements, not {reprlib.repr(size)}.")
        for name, value in vars(self).items():
            if isinstance(getattr(type(self), name), bool) and not isinstance(value, bool):
                raise BadInput(f"{name} must be true or false, not {reprlib.repr(value)}.")
        if self.norm_biases and not self.layer_norms:
            raise BadInput("only layer norms have biases here. Add layer_norms: true, or omit norm_biases.")

    @property
    def feed_forward_matrices(self) -> int:
        """The number of matrices of a feed-forward."""
        return 0 if self.no_feed_forward else 3 if self.gated else 2

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
        own = dict(content)
        if "rotary_scaling" in own:
            own["rotary_scaling"] = rotary_scaling_of(own["rotary_scaling"])
        return cls(**own)

    def to_json(self) -> dict[str, Json]:
        """The fields that differ from LLaMA's."""
        found = {name: value for name, value in vars(self).items() if value != getattr(LLAMA, name)}
        if scaling := self.rotary_scaling:
            found["rotary_scaling"] = {name: each for name, each in scaling._asdict().items() if each is not None}
        return found


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
