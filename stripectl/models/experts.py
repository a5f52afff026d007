"""Layers of experts in a config.json: their number and sizes, and the feed-forward that stripectl computes instead."""

from typing import NamedTuple

from stripectl.core.replacement import WORK, Replacement
from stripectl.models.family import ConfigKeys


class Experts(NamedTuple):
    """Layers of experts: how many experts, how many of them compute a token, the feed-forward size of each and of the
    shared experts together, and how many layers have experts; the other layers have a feed-forward of size `dense`."""

    number: int
    chosen: int
    size: int
    shared: int = 0
    sparse_layers: int = 0
    dense_layers: int = 0
    dense: int = 0

    @property
    def active(self) -> int:
        """The total feed-forward size that computes a token."""
        return self.chosen * self.size + self.shared

    def replaced(self, d: int, gates: int = 0) -> list[Replacement]:
        """The replacement by a feed-forward as large as a token's experts in every layer; `gates` are parameters per
        layer in addition to experts and router."""
        theirs = d * self.number + 3 * d * (self.number * self.size + self.shared) + gates
        dense = 3 * d * self.dense_layers * (self.dense - self.active)
        more = self.sparse_layers * (theirs - 3 * d * self.active) + dense
        shared = f" and shared experts of size {self.shared}" if self.shared else ""
        part = f"{self.number} experts of size {self.size}{shared}, {self.chosen} per token"
        if self.dense_layers and self.dense != self.active:
            part += f", but a feed-forward of size {self.dense} in {self.dense_layers} layers"
        return [Replacement(part, f"a feed-forward of size {self.active}", more, WORK)]


def experts_in_every_layer(keys: ConfigKeys, count: str, size: str, shared: int = 0) -> Experts:
    """The experts of a family whose layers all have experts; the keys with their number and their feed-forward size.

    Raises:
        BadInput: some layers have a plain feed-forward.
    """
    if keys.value("mlp_only_layers") or keys.optional_size("decoder_sparse_step") not in (None, 1):
        raise keys.refuse("mlp_only_layers", "empty, with a decoder_sparse_step of 1")
    layers, chosen = keys.size("num_hidden_layers"), keys.size("num_experts_per_tok")
    return Experts(keys.size(count), chosen, keys.size(size), shared, layers)


def experts_after_dense_layers(keys: ConfigKeys, count: str) -> Experts:
    """The experts of a family whose first layers have a plain feed-forward; `count` is the key with their number."""
    layers, size = keys.size("num_hidden_layers"), keys.size("moe_intermediate_size")
    dense = min(layers, keys.size("first_k_dense_replace", 0))
    shared = keys.size("n_shared_experts", 0) * size
    chosen, plain = keys.size("num_experts_per_tok"), keys.size("intermediate_size")
    return Experts(keys.size(count), chosen, size, shared, layers - dense, dense, plain)
