"""The sizes of a transformer."""

import reprlib
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from stripectl.core.architecture import LLAMA, Architecture
from stripectl.core.layer_kinds import MaskRun
from stripectl.core.lengths import MAX_SEQ_LEN
from stripectl.core.linear_attention import (
    ATTENTIONS,
    CONSTANT,
    FEATURES,
    LinearHeads,
    kind_fields,
    pattern_of,
    recurrence_of,
)
from stripectl.core.recurrence import Recurrence
from stripectl.core.replacement import Replacement
from stripectl.errors import BadInput
from stripectl.util.json import is_positive

MODEL_SIZES = ("hidden", "feed_forward", "layers", "vocabulary")  # of a model, in addition to its attention
STEP_FIELDS = (
    *MODEL_SIZES,
    "other_parameters",
    "architecture",
)  # of a workload; attention alone does not depend on them
SOFTMAX = ("sinks", "soft_cap")  # fields of a workload or model that describe its softmax attention
MAX_HEADS = 2**16  # each has its own decay


def max_size(name: str) -> int:
    """The largest value of a size."""
    return MAX_HEADS if name in ("heads", "kv_heads", "key_heads") else MAX_SEQ_LEN


def check_softmax(attention: str, sinks: object, soft_cap: object) -> None:
    """Do nothing where a model, or one layer, can have such sinks and such a soft cap of scores.

    Raises:
        BadInput: a value is wrong, or no layer has softmax attention.
    """
    if not isinstance(sinks, bool):
        raise BadInput(f"sinks must be true or false, not {reprlib.repr(sinks)}.")
    if soft_cap is not None and not is_positive(soft_cap):
        raise BadInput(f"soft_cap must be a positive number, not {reprlib.repr(soft_cap)}.")
    if attention == "linear" and (sinks or soft_cap):
        raise BadInput("linear attention has no softmax that sinks or a soft cap could change. Omit them.")


class Matrix(NamedTuple):
    """A matrix that multiplies tokens of `inner` elements to `cols` elements; `tensor` splits its inner dimension, its
    columns, or neither."""

    inner: int
    cols: int
    split: Literal["inner", "cols"] | None = None

    def shard(self, tensor: int) -> tuple[float, float]:
        """Its dimensions on one of `tensor` devices."""
        return self.inner / (tensor if self.split == "inner" else 1), self.cols / (
            tensor if self.split == "cols" else 1
        )


@dataclass(frozen=True, kw_only=True)
class Model:
    """The sizes of a transformer that decide its arithmetic, and its attention (as in a Workload) where that is not
    softmax; a YAML file in `profiles/models/`. `architecture` says how its layers differ from LLaMA's.
    `sinks` and `soft_cap` are of its softmax layers, as in a Workload. `d_conv` is the number of tokens that the short
    convolution of a layer with a recurrence adds up. `layer_masks` are the masks of its layers, in the pattern in which
    they repeat; without them a layer has the mask of the workload. `replaced` are the parts of a published model that
    are not computed. `other_parameters` is the number of the model's parameters that no computed matrix has: more of
    the replaced parts, and `vector_parameters` of the file (norms, biases, sinks, convolutions). It is negative where
    the model has fewer."""

    name: str
    hidden: int
    feed_forward: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    key_heads: int | None = None
    linear_heads: LinearHeads | None = None
    v_head_dim: int | None = None
    sinks: bool = False
    soft_cap: float | None = None
    d_conv: int | None = None
    attention: str = ATTENTIONS[0]
    recurrence: str = CONSTANT
    decay: str = "1"
    features: str = FEATURES[0]
    other_parameters: int = 0
    architecture: Architecture = LLAMA
    layer_masks: tuple[MaskRun, ...] = ()
    replaced: tuple[Replacement, ...] = ()

    @property
    def step_sizes(self) -> dict[str, Any]:
        """The fields that the model shares with the workload of its training step."""
        return {name: value for name, value in vars(self).items() if name not in ("name", "replaced")}

    @property
    def value_dim(self) -> int:
        """Elements of a head of values."""
        return self.v_head_dim or self.head_dim

    @property
    def kinds(self) -> list[tuple[int, "Model"]]:
        """(number of layers, the model with only such layers) for each kind of layer."""
        pattern = pattern_of(self.attention)
        if len(set(pattern)) == 1:
            return [(self.layers, self)]
        turns = self.layers // len(pattern)
        return [(turns * pattern.count(kind), self.of_kind(kind)) for kind in sorted(set(pattern))]

    def of_kind(self, kind: str) -> "Model":
        """The model with only layers of this kind."""
        return self if kind == self.attention else replace(self, **kind_fields(kind, self.linear_heads))

    @property
    def gated(self) -> Recurrence | None:
        """The recurrence of its layers, where their gates or rule depend on the input; else None."""
        return recurrence_of(self.recurrence) if self.attention == "linear" else None

    @property
    def query_heads(self) -> int:
        """The number of query heads; for a recurrence the number of key heads."""
        return (self.key_heads or self.heads) if self.gated else self.heads

    @property
    def projected(self) -> int:
        """Elements of a token's queries, keys, values and output."""
        keys = 2 * self.query_heads if self.gated else self.heads + self.kv_heads
        return keys * self.head_dim + (self.heads + self.kv_heads) * self.value_dim

    @property
    def projections(self) -> list[Matrix]:
        """The matrices of a layer's attention, with the matrices that compute a recurrence's gates. A gate per key
        element is computed through a bottleneck as large as a key."""
        d, keys = self.hidden, self.query_heads if self.gated else self.kv_heads
        found = [
            Matrix(d, self.query_heads * self.head_dim, "cols"),
            Matrix(d, keys * self.head_dim, "cols"),
            Matrix(d, self.kv_heads * self.value_dim, "cols"),
            Matrix(self.heads * self.value_dim, d, "inner"),
        ]
        if self.gated and self.gated.gate == "scalar":
            found.append(Matrix(d, self.heads, "cols"))
        if self.gated and self.gated.gate == "vector":
            found += [Matrix(d, self.head_dim), Matrix(self.head_dim, self.heads * self.head_dim, "cols")]
        return found + self.output_gate + [Matrix(d, self.heads, "cols")] * bool(self.gated and self.gated.delta)

    @property
    def output_gate(self) -> list[Matrix]:
        """The matrices of the gate of attention's output."""
        d, size, width = self.hidden, self.value_dim, self.heads * self.value_dim
        if self.attention != "linear":
            return [Matrix(d, width, "cols")] * self.architecture.attention_gate
        through = [Matrix(d, size), Matrix(size, width, "cols")]
        whole = [Matrix(d, width, "cols")]
        return {"none": [], "silu": whole, "sigmoid": through, "mamba2": whole}[self.architecture.linear_gate]

    @property
    def projection_parameters(self) -> int:
        """Parameters of the matrices of a layer's attention."""
        return sum(each.inner * each.cols for each in self.projections)

    @property
    def layer_parameters(self) -> int:
        """Parameters of a layer's matrices: the matrices of attention and of the feed-forward."""
        return self.projection_parameters + self.feed_forward_parameters

    @property
    def feed_forward_parameters(self) -> int:
        """Parameters of the matrices of a layer's feed-forward."""
        return self.architecture.feed_forward_matrices * self.hidden * self.feed_forward

    @property
    def all_layer_parameters(self) -> int:
        """Parameters of the matrices of all layers."""
        return sum(count * each.layer_parameters for count, each in self.kinds)

    @property
    def parameters(self) -> int:
        """All parameters of the model: of matrices, of the embedding and the head, and others."""
        return self.all_layer_parameters + self.vocabulary_parameters + self.other_parameters

    @property
    def head_parameters(self) -> int:
        """Parameters of the matrix that makes logits; the embedding has as many."""
        return self.hidden * self.vocabulary

    @property
    def vocabulary_parameters(self) -> int:
        """Parameters of the embedding and of the matrix that makes logits, which may be one matrix."""
        return self.head_parameters * (1 if self.architecture.tied else 2)

    def of_layers(self, layers: int) -> "Model":
        """The model with another number of layers, and its other parameters in proportion."""
        return replace(self, layers=layers, other_parameters=self.other_parameters * layers // self.layers)
