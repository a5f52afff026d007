"""The computation: a model or its attention, batch, sequence length, dtype, mask and pass."""

import functools
import reprlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args

import numpy as np

from stripectl.core.architecture import LLAMA, Architecture
from stripectl.core.layer_kinds import (
    LayerKind,
    MaskRun,
    mask_counts,
    mask_pattern,
    masks_of_layers,
    masks_text,
    read_mask_runs,
)
from stripectl.core.layout import UNBOUNDED, MaskBlock, Window, parse_mask
from stripectl.core.linear_attention import (
    ATTENTIONS,
    CONSTANT,
    FEATURES,
    LINEAR,
    LinearHeads,
    check_linear,
    kernel_family,
    kind_fields,
    parse_decay,
    pattern_of,
    recurrence_of,
)
from stripectl.core.mask_tiles import count_pairs
from stripectl.core.model import MODEL_SIZES, SOFTMAX, STEP_FIELDS, Model, check_softmax, max_size
from stripectl.core.recurrence import Recurrence
from stripectl.core.replacement import checked_parameters
from stripectl.errors import BadInput
from stripectl.util.files import unknown_name
from stripectl.util.json import Json, is_list

Pass = Literal["forward", "forward-backward", "step"]
Dtype = Literal["bfloat16", "float32"]
PASSES: tuple[str, ...] = get_args(Pass)
STEP = "step"
ATTENTION_PASSES = tuple(each for each in PASSES if each != STEP)
# Not written where they have their default.
OPTIONAL = (
    *STEP_FIELDS,
    *SOFTMAX,
    "key_heads",
    "d_conv",
    "linear_heads",
    "v_head_dim",
    "query_len",
    "documents",
    "layer_masks",
    *LINEAR,
)
DTYPES: tuple[str, ...] = get_args(Dtype)
DTYPE_BYTES = {"bfloat16": 2, "float32": 4}
GATE_DTYPE = "float32"  # of a recurrence's gates: their logarithms add up over a sequence
SINK_DTYPE = "float32"  # of sinks, which join a float32 log-sum-exp
MAX_DOCUMENTS, MAX_PACKED_TOKENS = 2**20, 2**24  # documents in a sequence, and its positions: each is looked up


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One attention layer's work on one batch, or a training step of a model.

    `heads` query heads share `kv_heads` key/value heads in equal groups. Values and the output have heads of
    `v_head_dim` elements where that is not `head_dim`, the size of queries and keys (DeepSeek-V3: 128 and 192).
    `attention` is `softmax` or `linear`. With `linear`, `recurrence` is the rule by which a token changes a state.
    With the constant rule (`decay`), `decay` is the factor by which a state decays per token (`1`, `0.99`, or
    `per-head` for TransNormerLLM's decays) and `features` is the map of queries and keys. With the others, each of the
    `heads` of values has a state, and equal groups of them share `key_heads` heads of queries and keys. A step may have
    a pattern of both kinds, one letter per layer, which repeats: `LLLS`; `linear_heads` are the heads of its linear
    layers, where they are different; `d_conv` is the number of tokens of their short convolutions, which only a step
    has. Scores x of softmax attention are soft_cap * tanh(x / soft_cap) where there is a `soft_cap`, and with `sinks`
    the sum of a query's exponentials has one more, of a number per query head (gpt-oss). Layers whose masks differ have
    them in `layer_masks`: a step in the pattern in which they repeat, and attention alone, whose time is then the mean
    of a layer's, by their number. `query_len` queries at the end of `seq_len` keys are the new queries of an inference
    with a cached prefix; None means all. `documents` are the lengths of the documents that are packed in the sequence,
    repeated until it is full; a query sees only its own document. A `forward-backward` pass computes the output and,
    from a cotangent of the output, the gradients of queries, keys and values. A `step` is a step of the whole model:
    loss, gradients and the optimizer's update; only a step has the sizes of a model. `other_parameters` is the number
    of the model's parameters that no computed matrix has; memory counts them. `architecture` says how the model's
    layers differ from LLaMA's.
    """

    seq_len: int
    heads: int
    kv_heads: int
    head_dim: int
    key_heads: int | None = None
    linear_heads: LinearHeads | None = None
    v_head_dim: int | None = None
    sinks: bool = False
    soft_cap: float | None = None
    d_conv: int | None = None
    batch: int = 1
    dtype: str = "bfloat16"
    mask: str = "causal"
    layer_masks: tuple[MaskRun, ...] = ()
    passes: str = "forward"
    attention: str = ATTENTIONS[0]
    recurrence: str = CONSTANT
    decay: str = "1"
    features: str = FEATURES[0]
    query_len: int | None = None
    documents: tuple[int, ...] | None = None
    model: str | None = None
    hidden: int | None = None
    feed_forward: int | None = None
    layers: int | None = None
    vocabulary: int | None = None
    other_parameters: int = 0
    architecture: Architecture = LLAMA

    def __post_init__(self) -> None:
        sizes = MODEL_SIZES if self.passes == STEP else ()
        for name in ("seq_len", "heads", "kv_heads", "head_dim", "batch", *sizes):
            value, most = getattr(self, name), max_size(name)
            if type(value) is not int or not 1 <= value <= most:
                raise BadInput(f"{name} must be an integer from 1 to {most}, not {reprlib.repr(value)}.")
        if self.v_head_dim is not None:
            self._check_value_heads()
        if type(self.model) not in (str, type(None)):
            raise BadInput(f"model must be a name, not {self.model!r}.")
        if self.heads % self.kv_heads:
            raise BadInput(f"{self.heads} heads cannot share {self.kv_heads} key/value heads evenly.")
        for kind, value, known in (("dtype", self.dtype, DTYPES), ("pass", self.passes, PASSES)):
            if value not in known:
                raise unknown_name(kind, value, known)
        parse_mask(self.mask)
        if self.layer_masks:
            self._set_layer_masks()
        linear = self.recurrence, self.decay, self.features
        check_linear(self.attention, *linear, heads=self.kv_heads, layers=self.layers, d_conv=self.d_conv)
        check_softmax(self.attention, self.sinks, self.soft_cap)
        self._check_key_heads()
        self._check_pattern()
        if self.passes == STEP and self.other_parameters != 0:
            self._check_other_parameters()
        if self.query_len is not None:
            self._check_queries()
        if self.documents is not None:
            self._check_documents()

    def _set_layer_masks(self) -> None:
        """Write the masks of layers in their shortest form; one mask for all layers becomes `mask`."""
        every = [run.mask for run in self.layer_masks for _ in range(run.layers)]
        masks = masks_of_layers(self.layer_masks, self.layers) if self.passes == STEP and self.layers else every
        alike = len({*masks}) == 1
        if alike:
            object.__setattr__(self, "mask", masks[0])
        elif self.attention == "linear":
            raise BadInput("layers of linear attention have one mask. Add --mask causal.")
        elif self.mask != "causal":
            raise BadInput(f"a workload has the mask {self.mask} for all layers, or layer_masks. Omit one.")
        runs = () if alike else mask_pattern(masks) if self.passes == STEP else mask_counts(masks)
        object.__setattr__(self, "layer_masks", runs)

    def _check_pattern(self) -> None:
        """Check that a pattern of layers is a model's, and that only a pattern has heads of its linear layers."""
        if self.attention not in ATTENTIONS and self.passes != STEP:
            raise BadInput(
                f"layers of {self.attention} need a training step. Add --pass step, or for one layer "
                f"--attention {' or '.join(ATTENTIONS)}."
            )
        if self.linear_heads is not None and self.attention in ATTENTIONS:
            raise BadInput("only a pattern of layers has linear_heads. Add --attention LLLS.")
        if self.linear_heads is not None and self.recurrence == CONSTANT:
            raise BadInput("linear_heads need a recurrence. Add --recurrence gdn.")
        if self.attention not in ATTENTIONS:
            self.of_kind(LayerKind("linear", self.mask))  # its checks may refuse this workload

    def _check_value_heads(self) -> None:
        most = max_size("head_dim")
        if type(self.v_head_dim) is not int or not 1 <= self.v_head_dim <= most:
            raise BadInput(f"v_head_dim must be an integer from 1 to {most}, not {reprlib.repr(self.v_head_dim)}.")
        if self.v_head_dim == self.head_dim:
            object.__setattr__(self, "v_head_dim", None)
        elif "linear" in pattern_of(self.attention) and self.recurrence == CONSTANT:
            raise BadInput("linear attention needs value heads as large as key heads. Omit --v-head-dim.")

    def _check_key_heads(self) -> None:
        if self.key_heads is not None:
            if type(self.key_heads) is not int or not 1 <= self.key_heads <= self.heads or self.heads % self.key_heads:
                raise BadInput(f"key_heads must divide the {self.heads} heads, not {reprlib.repr(self.key_heads)}.")
            if self.recurrence == CONSTANT:
                raise BadInput("only a recurrence has --key-heads. Add --recurrence gdn, or try --kv-heads.")
            if self.key_heads == self.heads:
                object.__setattr__(self, "key_heads", None)
        if self.kernel_family == "gated" and self.kv_heads != self.heads:
            raise BadInput(
                f"{self.recurrence} has a state per head: {self.heads} heads cannot share {self.kv_heads} key/value "
                f"heads. Try --kv-heads {self.heads}, and --key-heads for key heads that value heads share."
            )

    @property
    def kernel_passes(self) -> tuple[str, ...]:
        """The passes of attention kernels."""
        return ("forward",) if self.passes == "forward" else ("forward", "backward")

    def _check_other_parameters(self) -> None:
        checked_parameters(self.other_parameters, "other_parameters")
        if self.sizes.parameters < 1:
            raise BadInput(f"other_parameters of {self.other_parameters} leave no parameter of the model.")

    def _check_queries(self) -> None:
        if type(self.query_len) is not int or not 1 <= self.query_len <= self.seq_len:
            raise BadInput(f"query_len must be from 1 to the {self.seq_len} keys, not {self.query_len!r}.")
        if self.passes != "forward":
            raise BadInput("queries behind a cached prefix are for inference. Use --pass forward.")
        if self.documents is not None:
            raise BadInput("documents are packed for training, without --query-len.")

    def _check_documents(self) -> None:
        lengths = self.documents
        if not isinstance(lengths, tuple) or not lengths or any(type(each) is not int or each < 1 for each in lengths):
            raise BadInput(f"documents must have positive lengths, not {lengths!r}. Write --documents 4k,1k.")
        if self.seq_len > MAX_PACKED_TOKENS:
            raise BadInput(f"at most {MAX_PACKED_TOKENS} tokens (16M) can hold documents, not {self.seq_len}.")
        if self.seq_len * len(lengths) > MAX_DOCUMENTS * sum(lengths):
            raise BadInput(
                f"documents of {lengths} fill {self.seq_len} tokens with more than {MAX_DOCUMENTS}. "
                "Try longer documents."
            )

    def without(self, *names: str) -> tuple[Any, ...]:
        """A key that is equal for workloads that differ only in these fields."""
        return tuple(getattr(self, field.name) for field in fields(self) if field.name not in names)

    @property
    def value_dim(self) -> int:
        """Elements of a head of values and of the output."""
        return self.v_head_dim or self.head_dim

    @property
    def window(self) -> Window:
        """How far a query sees, in layers with one mask."""
        if self.layer_masks:
            raise ValueError(f"{self} has no window of all its layers")
        return parse_mask(self.mask)

    @functools.cached_property
    def layer_kinds(self) -> list[LayerKind]:
        """The kind of each layer, in order; of attention alone, of the layers that its time is the mean of."""
        pattern = pattern_of(self.attention)
        layers = self.layers or sum(run.layers for run in self.layer_masks) or 1
        masks = masks_of_layers(self.layer_masks, layers) if self.layer_masks else [self.mask] * layers
        kinds = [LayerKind(pattern[at % len(pattern)], mask) for at, mask in enumerate(masks)]
        if not self.layer_masks:
            return kinds
        return [kind._replace(mask="causal") if kind.attention == "linear" else kind for kind in kinds]

    @functools.cached_property
    def kinds(self) -> Mapping[LayerKind, int]:
        """The number of layers of each kind; for one layer's attention, its kind and 1."""
        return Counter(self.layer_kinds)

    @property
    def has_windows(self) -> bool:
        """Whether queries see a limited number of keys, in all layers or in some."""
        return any(parse_mask(kind.mask).left is not None for kind in self.kinds)

    @property
    def is_hybrid(self) -> bool:
        """Whether its layers have both kinds of attention."""
        return self.attention not in ATTENTIONS

    @property
    def masks_text(self) -> str:
        """The masks of its layers in words: `causal`, or `sliding:1k in 52 of 62 layers, causal in the others`."""
        return masks_text([kind.mask for kind in self.layer_kinds])

    @property
    def kernel_family(self) -> str:
        """The family of kernels for such attention; softmax for a pattern."""
        return kernel_family(self.attention, self.recurrence) if self.attention == "linear" else ATTENTIONS[0]

    @property
    def gated(self) -> Recurrence | None:
        """The recurrence of one layer's attention where its gates or its rule depend on the input, or None."""
        return recurrence_of(self.recurrence) if self.attention == "linear" else None

    @property
    def query_heads(self) -> int:
        """The number of query heads; for a recurrence the number of key heads."""
        return self.key_heads or self.heads if self.gated else self.heads

    @property
    def kv_shapes(self) -> list[tuple[int, int, tuple[int, ...], str]]:
        """(heads, positions, shape per position, dtype) of keys, values and, for a recurrence, its gates."""
        length, recurrence = self.seq_len, self.gated
        keys = (self.key_heads or self.kv_heads) if recurrence else self.kv_heads
        gates = recurrence.gate_shapes(self.head_dim).values() if recurrence else ()
        return [
            (keys, length, (self.head_dim,), self.dtype),
            (self.kv_heads, length, (self.value_dim,), self.dtype),
            *((self.kv_heads, length, shape, GATE_DTYPE) for shape in gates),
        ]

    @property
    def rates(self) -> np.ndarray | None:
        """float64 (kv_heads,): the logarithm of the decay per token of each key/value head; None where it is not
        constant."""
        return parse_decay(self.decay, self.kv_heads) if self.kernel_family == "linear" else None

    @property
    def queries(self) -> int:
        """The number of queries per sequence."""
        return self.query_len or self.seq_len

    @property
    def starts(self) -> np.ndarray | None:
        """int32 (documents,): where each document begins, or None for a sequence of one document."""
        if self.documents is None:
            return None
        turns = -(-self.seq_len // sum(self.documents))
        ends = np.cumsum(np.tile(np.asarray(self.documents, np.int64), turns))
        return np.concatenate([[0], ends[ends < self.seq_len]]).astype(np.int32)

    @property
    def pairs(self) -> int:
        """Query/key pairs that the mask keeps, for one head of one sequence."""
        return _pairs(self)

    @functools.cached_property
    def flops(self) -> float:
        """Floating-point operations that the mathematics needs. Softmax attention has two matmuls of 2 d per live pair
        in the forward pass and four in the backward pass, half of them with d of keys and half with d of values. Linear
        attention has 2 d^2 per token for adding a key to a state and as much for reading it, and with the delta rule as
        much for reading it with the key. A step adds 6 FLOPs per token and parameter of its matrices, without the
        embedding.

        Recomputation does not count, neither scores in a flash-style backward pass nor a rematerialised layer, as in an
        MFU (Chowdhery et al. 2022, appendix B, which also counts dead pairs; here a causal mask halves them).
        """
        matmuls = 2 if self.passes == "forward" else 6
        layers = sum(count * self.of_kind(kind).layer_products for kind, count in self.kinds.items())
        attention = matmuls * float(layers * self.batch)
        if self.passes != STEP:
            return attention / len(self.layer_kinds)
        sizes = self.sizes
        parameters = sizes.all_layer_parameters + sizes.head_parameters
        return attention + 6.0 * parameters * self.seq_len * self.batch

    @property
    def layer_products(self) -> int:
        """Multiplications in the forward pass of one layer for one sequence and all heads, in units of one matmul:
        softmax attention has two."""
        if self.attention == "softmax":
            return self.heads * self.pairs * (self.head_dim + self.value_dim)
        products = self.gated.products if self.gated else 2
        return self.heads * products * self.queries * self.head_dim * self.value_dim

    @property
    def sizes(self) -> Model:
        """The sizes of a step's model."""
        own = {
            name: getattr(self, name)
            for name in (
                *STEP_FIELDS,
                *LINEAR,
                "heads",
                "kv_heads",
                "head_dim",
                "key_heads",
                "linear_heads",
                "v_head_dim",
                "d_conv",
                *SOFTMAX,
            )
        }
        return Model(name=self.model or "", **own)

    def of_kind(self, kind: LayerKind) -> "Workload":
        """The workload if all layers were of one kind."""
        fields_of_kind = {} if kind.attention == self.attention else kind_fields(kind.attention, self.linear_heads)
        if not fields_of_kind and not self.layer_masks:
            return self
        return replace(self, mask=kind.mask, layer_masks=(), **fields_of_kind)

    def one_layer(self, passes: str) -> "Workload":
        """One layer's attention, of a step whose layers are equal."""
        return replace(
            self, passes=passes, d_conv=None, other_parameters=0, architecture=LLAMA, **dict.fromkeys(MODEL_SIZES)
        )

    def to_json(self) -> dict[str, Json]:
        known = ((field, getattr(self, field.name)) for field in fields(self))
        content = {field.name: value for field, value in known if field.name not in OPTIONAL or value != field.default}
        content["pass"] = content.pop("passes")
        if "architecture" in content:
            content["architecture"] = self.architecture.to_json()
        if self.layer_masks:
            content["layer_masks"] = [run.to_json() for run in self.layer_masks]
        return content

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "Workload":
        known = {"passes" if key == "pass" else key: value for key, value in content.items()}
        if is_list(documents := known.get("documents")):
            known["documents"] = tuple(documents)
        if (heads := known.get("linear_heads")) is not None:
            known["linear_heads"] = LinearHeads.of(heads)
        if "layer_masks" in known:
            known["layer_masks"] = read_mask_runs(known["layer_masks"])
        if "architecture" in known:
            known["architecture"] = Architecture.of(known["architecture"])
        return cls(**known)


@functools.lru_cache(4096)  # measurements of a run share their workloads
def _pairs(workload: Workload) -> int:
    left, right = workload.window

    def kept(queries: int, keys: int) -> int:
        first = keys - queries
        low = -UNBOUNDED if left is None else first - left
        high = UNBOUNDED if right is None else first + right
        return int(count_pairs([MaskBlock(0, 0, queries, keys, low, high)]))

    if workload.starts is None:
        return kept(workload.queries, workload.seq_len)
    lengths: Counter[int] = Counter(np.diff(workload.starts, append=workload.seq_len).tolist())
    return sum(times * kept(length, length) for length, times in lengths.items())
