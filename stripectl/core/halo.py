"""The exchange of rows between runs of adjacent tokens. The runs before and behind a run are on the same device or on a
neighbour (`Layout.adjacent_runs`)."""

from collections.abc import Sequence

from stripectl.core.comm import Array, Shifts


def of_adjacent_run(
    arrays: Sequence[Array], axis: str, sources: Sequence[tuple[int, int] | None], comm: Shifts, what: str
) -> Array:
    """The array of a run's adjacent run, from one array for each run of this shard; zeros where there is none.
    `sources` are the (shard, run) of every shard's adjacent run: the shard itself, or for all others a neighbour on the
    same side."""
    ((by, run),) = {(me - source[0], source[1]) for me, source in enumerate(sources) if source and source[0] != me}
    found = comm.shift(arrays[run], axis, what, by, lambda i: (i, run) in sources and sources.index((i, run)) != i)
    for me, source in enumerate(sources):
        if source and source[0] == me:
            found = comm.where(comm.index(axis) == me, arrays[source[1]], found)
    return found
