"""A recurrence says how a token changes the state of linear attention: by gates that are made from the input, by the
delta rule, or by both. `recurrences` finds the published recurrences by listing their folder.

A state is float32, (H, E): H elements of a key, E of a value. Token t, with key k and value v, makes

    S_t = Diag(a_t) S_{t-1} + k_t v_t^T                                        a gate, or
    S_t = (I - b_t k_t k_t^T) Diag(a_t) S_{t-1} + b_t k_t v_t^T                a gate and the delta rule,

and the output is o_t = S_t^T q_t. The gate a_t is a number, or a number per key element, in (0, 1], given by its
logarithm; b_t in [0, 2] is how much of the old value under a key the new one replaces. So a chunk or a shard of
tokens applies an affine map S -> A S + B to a state, where A is a number, a diagonal or a matrix of H x H, and such
maps compose. Gradients of states go the other way by the transposed maps, G -> A^T G + C.
"""

from dataclasses import dataclass
from typing import Literal

from stripectl.util.catalogue import Catalogue

HEADS_AT_ONCE = 8  # value heads that a kernel computes together: enough to fill a device, few enough for their states
LOG_GATE, WRITE = "log_gate", "write"  # the arrays of a recurrence besides queries, keys and values


@dataclass(frozen=True)
class Recurrence:
    """A published recurrence.

    gate: the gate a_t is a number per token and head, one per key element, or 1.
    delta: the delta rule, whose keys have norm 1.
    gate_activation: how a model makes the logarithm of a gate from logits x: -exp(c) softplus(x + d) with parameters c
        and d of a head (Mamba-2), or logsigmoid(x) / 16 (GLA).
    """

    name: str
    title: str
    paper: str
    gate: Literal["none", "scalar", "vector"]
    delta: bool = False
    gate_activation: Literal["", "softplus", "logsigmoid"] = ""

    @property
    def map_kind(self) -> Literal["number", "diagonal", "matrix"]:
        """The form of A."""
        return "matrix" if self.delta else "diagonal" if self.gate == "vector" else "number"

    def map_elements(self, key_dim: int, value_dim: int) -> int:
        """The number of elements of a head's map: A and B together."""
        return key_dim * value_dim + {"number": 1, "diagonal": key_dim, "matrix": key_dim**2}[self.map_kind]

    def gate_shapes(self, key_dim: int) -> dict[str, tuple[int, ...]]:
        """The arrays of gates, in the order in which they follow the values: name and shape per token and head."""
        gate = {"none": {}, "scalar": {LOG_GATE: ()}, "vector": {LOG_GATE: (key_dim,)}}[self.gate]
        return gate | ({WRITE: ()} if self.delta else {})

    @property
    def products(self) -> int:
        """The number of products of a token with a state: one adds its key, one reads the state with its query, and
        with the delta rule one reads it with its key."""
        return 2 + self.delta


recurrences: Catalogue[Recurrence] = Catalogue("stripectl.core.recurrences", "recurrence", "recurrence")
