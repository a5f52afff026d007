"""The embedding: the row of each token. Devices of `tensor` have columns of the table.

Where the same matrix makes the logits, they have parts of its vocabulary, as Megatron-LM's have (Shoeybi et al. 2019):
with columns, a device would make a part of every logit, and a sum over devices of v elements per token would follow, in
place of the sum of d elements that the embedding needs. A device finds zeros for tokens of other devices.
"""

from stripectl.core.comm import Array
from stripectl.core.model import Model
from stripectl.core.ops import Ops, Weights
from stripectl.core.parameters import Parameter
from stripectl.core.scopes import EMBEDDING


def embedding_parameters(sizes: Model) -> dict[str, Parameter]:
    """The table, (v, d)."""
    dims = ("tensor", "hidden") if sizes.architecture.tied else (None, "features")
    return {"embedding": Parameter((sizes.vocabulary, sizes.hidden), dims)}


def embedding(tokens: Array, weights: Weights, sizes: Model, ops: Ops) -> Array:
    """The first hidden states of tokens (b, t)."""
    with ops.section(EMBEDDING):
        embed = ops.embed_parts if sizes.architecture.tied else ops.embed
        x = embed(weights["embedding"], tokens)
        return ops.scale(x, sizes.hidden**0.5) if sizes.architecture.scaled_embedding else x
