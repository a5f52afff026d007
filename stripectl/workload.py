"""What is computed: the shape of a model or of its attention, batch, sequence length, dtype, mask and pass."""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, get_args

import numpy as np

from stripectl import BadInput
from stripectl.files import profile, unknown
from stripectl.layout import MASKS, UNBOUNDED, Rectangle, Window, count_pairs

Pass = Literal["forward", "forward-backward", "step"]
Dtype = Literal["bfloat16", "float32"]
PASSES: tuple[str, ...] = get_args(Pass)
STEP = "step"
ATTENTION_PASSES = tuple(each for each in PASSES if each != STEP)
SIZES = ("hidden", "feed_forward", "layers", "vocabulary")  # of a model, beside its attention
OPTIONAL = (*SIZES, "query_len", "documents", "attention", "decay", "features")  # not written where they are as usual
DTYPES: tuple[str, ...] = get_args(Dtype)
DTYPE_BYTES = {"bfloat16": 2, "float32": 4}
LONGEST = 2**30  # positions are 32-bit integers, and sums of two must not overflow
MOST_DOCUMENTS = 2**20  # in a sequence
SUFFIXES = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30}
ATTENTIONS = ("softmax", "linear")
FEATURES = ("none", "elu")  # of linear attention: queries and keys as they are, or 1 + elu of them
TNL = "tnl"  # the decays of TransNormerLLM, a head each
SLIDING = "sliding:"  # a mask of a query and so many keys before it, with itself: `sliding:4k`


@dataclass(frozen=True, kw_only=True)
class Model:
    """The sizes of a transformer that decide its arithmetic; a YAML file in `profiles/models/`."""

    name: str
    hidden: int
    feed_forward: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int

    @property
    def layer_parameters(self) -> int:
        """Of a layer's matrices: projections to heads and back, and the three of a SwiGLU."""
        heads = 2 * self.heads + 2 * self.kv_heads
        return self.hidden * (heads * self.head_dim + 3 * self.feed_forward)

    @property
    def head_parameters(self) -> int:
        """Of the matrix that makes logits; the embedding has as many."""
        return self.hidden * self.vocabulary

    @classmethod
    def load(cls, name: str) -> "Model":
        """A model by name or by the path of a YAML file.

        Raises:
            BadInput: unknown name, missing or unknown field, or a value that is not a positive integer.
        """
        path, content = profile("model", "models", name)
        given = {key: value for key, value in content.items() if key not in ("source", "name")}
        wanted = [field.name for field in fields(cls) if field.name != "name"]
        for key in given:
            if key not in wanted:
                raise unknown(f"field in the model {path}:", key, wanted)
        for key in wanted:
            if key not in given:
                raise BadInput(f"the model {path} has no {key!r}. It needs: {', '.join(wanted)}.")
            if type(given[key]) is not int or given[key] < 1:
                raise BadInput(f"the model {path} says {key}: {given[key]!r}; it must be a positive integer.")
        return cls(name=path.stem, **given)


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One attention layer's work on one batch, or a training step of a model.

    `heads` query heads share `kv_heads` key/value heads in equal groups. `attention` is `softmax`, or `linear`: then
    `decay` is what of a state is left after a token (`1`, `0.99`, or `tnl`: TransNormerLLM's) and `features` the map of
    queries and keys. `query_len` queries at the end of `seq_len`
    keys are the new ones of an inference with a cached prefix; None is all of them. `documents` are the lengths of the
    documents that are packed in the sequence, in turn until it is full; a query sees its own. A `forward-backward`
    pass computes the output and, from a cotangent of the output, the gradients of queries, keys and values. A `step` is
    the whole model's: loss, gradients and the optimizer's update; only it has the sizes beside attention.
    """

    seq_len: int
    heads: int
    kv_heads: int
    head_dim: int
    batch: int = 1
    dtype: str = "bfloat16"
    mask: str = "causal"
    passes: str = "forward"
    attention: str = ATTENTIONS[0]
    decay: str = "1"
    features: str = FEATURES[0]
    query_len: int | None = None
    documents: tuple[int, ...] | None = None
    model: str | None = None
    hidden: int | None = None
    feed_forward: int | None = None
    layers: int | None = None
    vocabulary: int | None = None

    def __post_init__(self) -> None:
        sizes = SIZES if self.passes == STEP else ()
        for name in ("seq_len", "heads", "kv_heads", "head_dim", "batch", *sizes):
            value = getattr(self, name)
            if type(value) is not int or not 1 <= value <= LONGEST:
                raise BadInput(f"{name} must be an integer from 1 to {LONGEST} (1G), not {str(value)[:20]!r}.")
        if not isinstance(self.model, str | None):
            raise BadInput(f"model must be a name, not {self.model!r}.")
        if self.heads % self.kv_heads:
            raise BadInput(f"{self.heads} heads cannot share {self.kv_heads} key/value heads evenly.")
        for kind, value, known in (
            ("dtype", self.dtype, DTYPES),
            ("pass", self.passes, PASSES),
            ("attention", self.attention, ATTENTIONS),
            ("feature map", self.features, FEATURES),
        ):
            if value not in known:
                raise unknown(kind, value, known)
        parse_mask(self.mask)
        parse_decay(self.decay, self.kv_heads)
        if self.attention != "linear" and (self.decay, self.features) != ("1", FEATURES[0]):
            raise BadInput("softmax attention has no decay and no feature map. Add --attention linear.")
        if self.query_len is not None:
            self._check_queries()
        if self.documents is not None:
            self._check_documents()

    def _check_queries(self) -> None:
        if type(self.query_len) is not int or not 1 <= self.query_len <= self.seq_len:
            raise BadInput(f"query_len must be from 1 to the {self.seq_len} keys, not {self.query_len!r}.")
        if self.passes != "forward":
            raise BadInput("queries behind a cached prefix are inference. Use --pass forward.")
        if self.documents is not None:
            raise BadInput("documents are packed for training, without --query-len.")

    def _check_documents(self) -> None:
        lengths = self.documents
        if not isinstance(lengths, tuple) or not lengths or any(type(each) is not int or each < 1 for each in lengths):
            raise BadInput(f"documents have positive lengths, not {lengths!r}. Write --documents 4k,1k.")
        if self.seq_len * len(lengths) > MOST_DOCUMENTS * sum(lengths):
            raise BadInput(
                f"documents of {lengths} fill {self.seq_len} tokens with more than {MOST_DOCUMENTS}. Try longer ones."
            )

    @property
    def but_for_length(self) -> tuple[Any, ...]:
        """Equal for workloads that differ in the length of the sequence alone."""
        return tuple(getattr(self, field.name) for field in fields(self) if field.name != "seq_len")

    @property
    def window(self) -> Window:
        return parse_mask(self.mask)

    @property
    def rates(self) -> np.ndarray | None:
        """float64 (kv_heads,): the logarithm of the decay of a token, of every key/value head; None of softmax."""
        return parse_decay(self.decay, self.kv_heads) if self.attention == "linear" else None

    @property
    def queries(self) -> int:
        """Of a sequence."""
        return self.query_len or self.seq_len

    @property
    def starts(self) -> np.ndarray | None:
        """int32 (documents,): where each document begins, or None where the sequence is one."""
        if self.documents is None:
            return None
        turns = -(-self.seq_len // sum(self.documents))
        ends = np.cumsum(np.tile(np.asarray(self.documents, np.int64), turns))
        return np.concatenate([[0], ends[ends < self.seq_len]]).astype(np.int32)

    @property
    def pairs(self) -> int:
        """Query/key pairs that the mask keeps, for one head of one sequence."""
        left, right = self.window

        def kept(queries: int, keys: int) -> int:
            first = keys - queries
            low = -UNBOUNDED if left is None else first - left
            high = UNBOUNDED if right is None else first + right
            return int(count_pairs([Rectangle(0, 0, queries, keys, low, high)]))

        if self.starts is None:
            return kept(self.queries, self.seq_len)
        lengths = Counter(np.diff(self.starts, append=self.seq_len).tolist())
        return sum(times * kept(length, length) for length, times in lengths.items())

    @property
    def flops(self) -> float:
        """Floating-point operations the mathematics asks for: two matmuls of 2 d a live pair forward, four backward, or
        of 2 d^2 a token of linear attention, where a key is added to a state and a query meets it; of a step besides 6
        a parameter of its matrices and token, the embedding's not counted.

        Nothing that is recomputed counts, neither scores in a flash-style backward pass nor a rematerialised layer, as
        in an MFU (Chowdhery et al. 2022, appendix B, which counts dead pairs too; here a causal mask halves them).
        """
        matmuls = 2 if self.passes == "forward" else 6
        met = self.pairs if self.attention == "softmax" else self.queries * self.head_dim
        attention = 2.0 * matmuls * met * self.head_dim * self.heads * self.batch
        if self.passes != STEP:
            return attention
        sizes = self.sizes
        parameters = sizes.layers * sizes.layer_parameters + sizes.head_parameters
        return sizes.layers * attention + 6.0 * parameters * self.seq_len * self.batch

    @property
    def sizes(self) -> Model:
        """Of a step's model."""
        own = {name: getattr(self, name) for name in (*SIZES, "heads", "kv_heads", "head_dim")}
        return Model(name=self.model or "", **own)

    def of_layer(self, passes: str) -> "Workload":
        """One layer's attention of a step."""
        return replace(self, passes=passes, **dict.fromkeys(SIZES))

    def to_json(self) -> dict[str, Any]:
        usual = {field.name: field.default for field in fields(self) if field.name in OPTIONAL}
        content = {key: value for key, value in asdict(self).items() if key not in usual or value != usual[key]}
        content["pass"] = content.pop("passes")
        return content

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "Workload":
        known = {"passes" if key == "pass" else key: value for key, value in content.items()}
        if isinstance(documents := known.get("documents"), list):
            known["documents"] = tuple(documents)
        return cls(**known)


def parse_mask(text: str) -> Window:
    """How far a query sees under a mask: `causal`, `full`, or `sliding:4k`.

    Raises:
        BadInput: not a mask.
    """
    if not isinstance(text, str):
        raise BadInput(f"a mask is a word, not {text!r}. Write causal, full or {SLIDING}4k.")
    if text in MASKS:
        return MASKS[text]
    if not text.startswith(SLIDING):
        raise unknown("mask", text, [*MASKS, f"{SLIDING}4k"])
    return Window(parse_length(text.removeprefix(SLIDING)) - 1, 0)


def plain_mask(text: str) -> str:
    """A mask in one spelling: `sliding:4k` for `sliding:4096`."""
    left, _ = parse_mask(text.strip())
    return text.strip() if left is None else f"{SLIDING}{format_length(left + 1)}"


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


def parse_length(text: str) -> int:
    """A sequence length: `262144`, `256k` (k, M and G are 1024-based, the papers' notation).

    Raises:
        BadInput: not a length, or not between 1 and 1G.
    """
    match = re.fullmatch(r"(\d{1,18})\s*([kmg]?)i?", text.strip().lower())
    if not match:
        raise BadInput(f"{text!r} is not a length. Write tokens, or k, M: 262144, 256k, 1M.")
    value = int(match[1]) * SUFFIXES[match[2]]
    if not 1 <= value <= LONGEST:
        raise BadInput(f"a length of {text} is out of range: from 1 to {LONGEST} (1G) tokens.")
    return value


def parse_lengths(text: str) -> list[int]:
    """A grid of lengths: commas separate, `16k..1M` doubles from the first to the last."""
    lengths: list[int] = []
    for part in text.split(","):
        first, dots, last = part.partition("..")
        value, end = parse_length(first), parse_length(last if dots else first)
        if value > end:
            raise BadInput(f"the range {part} runs backwards. Write the shorter length first.")
        while value <= end:
            lengths.append(value)
            value *= 2
    return list(dict.fromkeys(lengths))


def format_length(length: int) -> str:
    """`256k` for 262144; lengths that are no multiple of 1024 stay as they are."""
    for suffix in ("M", "k"):
        unit = SUFFIXES[suffix.lower()]
        if length % unit == 0:
            return f"{length // unit}{suffix}"
    return str(length)
