"""The embedding: the row of each token. Devices of `tensor` have columns of the table."""

from stripectl.core.comm import Array
from stripectl.core.model import Model
from stripectl.core.ops import Ops, Weights
from stripectl.core.parameters import Parameter
from stripectl.core.scopes import EMBEDDING


def embedding_parameters(sizes: Model) -> dict[str, Parameter]:
    """The table, (v, d)."""
    return {"embedding": Parameter((sizes.vocabulary, sizes.hidden), (None, "features"))}


def embedding(tokens: Array, weights: Weights, sizes: Model, ops: Ops) -> Array:
    """The first hidden states of tokens (b, t)."""
    with ops.section(EMBEDDING):
        x = ops.embed(weights["embedding"], tokens)
        return ops.scale(x, sizes.hidden**0.5) if sizes.architecture.scaled_embedding else x
