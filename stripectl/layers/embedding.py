"""The embedding: the row of each token. Devices of `tensor` have columns of the table."""

from stripectl.core.comm import Array
from stripectl.core.model import Model
from stripectl.core.ops import Ops, Weights
from stripectl.core.parameters import Parameter
from stripectl.core.scopes import EMBEDDING


def embedding_parameters(sizes: Model) -> dict[str, Parameter]:
    """The table, (v, d)."""
    return {"embedding": Parameter((sizes.vocabulary, sizes.hidden), (None, "features"))}


def embedding(tokens: Array, weights: Weights, ops: Ops) -> Array:
    """The first hidden states of tokens (b, t)."""
    with ops.section(EMBEDDING):
        return ops.embed(weights["embedding"], tokens)
