"""How a plan distributes the queries, keys and documents of a workload over its shards.

Queries are the last of the keys' positions: all of them in training, the new positions after a cached prefix in
inference. There the layout shards queries as it shards keys, or, where they are too few, requests are sharded. A
*document* is a range of positions whose queries see only its own keys. A query's position gives its document's first
and last position, so every device knows them from the starts of all documents, and K/V carry nothing about them.
"""

import numpy as np

from stripectl.core.layout import Documents, Index, SequenceSharding, layouts
from stripectl.core.plan import BATCH_AXES, HEAD_AXES, RING_AXES, SEQUENCE_AXES, Plan
from stripectl.core.scheme import schemes
from stripectl.core.workload import Workload


def sequence_sharding(workload: Workload, plan: Plan) -> SequenceSharding:
    """The sharding of a plan's attention."""
    dealt, rows = query_sharding(workload, plan) == "rows", workload.seq_len // plan.shards
    queries = workload.queries // plan.shards if dealt else workload.queries
    return SequenceSharding(layouts[plan.layout], workload.window, plan.shards, rows, queries, dealt)


def query_sharding(workload: Workload, plan: Plan) -> str:
    """How queries are distributed: by `rows`, by `requests` of the batch where rows are too few, or `whole`."""
    scheme, each = schemes[plan.scheme], plan.shards * layouts[plan.layout].pieces
    if scheme.query_sharding == "whole":
        return "whole"
    return "requests" if workload.query_len is not None and workload.query_len % each else "rows"


def min_heads(workload: Workload, plan: Plan) -> dict[str, int | None]:
    """The smallest number of heads that the plan needs, in the groups of the workload: a key head per device, or as
    many as the plan repeats."""
    keys = workload.key_heads or workload.kv_heads
    local, ulysses = keys // plan.product(HEAD_AXES), plan.size("ulysses")
    fewest = plan.product(HEAD_AXES) * (local if local % ulysses else ulysses)
    heads = fewest * (workload.heads // keys)
    if workload.key_heads:
        return {"heads": heads, "kv_heads": heads, "key_heads": fewest}
    return {"heads": heads, "kv_heads": fewest}


def axes_of(plan: Plan, how: str) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """The mesh axes that shard batch, heads and positions, of keys and values (`keys`) and of queries and outputs,
    where `how` is a result of `query_sharding` or `keys`."""
    if how == "keys":
        return BATCH_AXES, HEAD_AXES, SEQUENCE_AXES
    if how == "requests":
        return (*BATCH_AXES, *RING_AXES), HEAD_AXES, ()
    rows_over = schemes[plan.scheme].row_axes
    heads = tuple(axis for axis in HEAD_AXES if axis not in rows_over)
    return BATCH_AXES, heads, () if how == "whole" else (*SEQUENCE_AXES, *rows_over)


def document_lookup(starts: np.ndarray, seq_len: int) -> Documents:
    """The lookup of documents in a sequence where documents begin at `starts`, ascending from 0."""
    edges = np.append(starts, seq_len)

    def find(positions: Index) -> tuple[Index, Index]:
        index = np.searchsorted(edges, np.asarray(positions), side="right")
        return edges[index - 1], edges[index]

    return find
