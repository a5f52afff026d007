"""The source of the tile and hop costs that a time depends on, with their figures."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated

from stripectl.results.records import INLINE, Sparse
from stripectl.results.tile_cost import TileCost
from stripectl.util.units import duration, rate


class CostOrigin(StrEnum):
    """The origin of the cost of a tile."""

    MEASURED_TILE = "measured_tile"
    DATASHEET = "datasheet"
    ESTIMATED_CYCLES = "estimated_cycles"
    BUNDLES = "bundles"
    PUBLISHED = "published"
    MEASURED_BEFORE = "measured_before"
    MEASURED_STAGES = "measured_stages"
    ONE_BLOCK = "one_block"
    SHORT_RUN = "short_run"
    FEW_LAYERS = "few_layers"
    NONE = "none"

    @property
    def is_timed_here(self) -> bool:
        """Whether tiles or plans ran on this machine."""
        return self in (self.MEASURED_TILE, self.ONE_BLOCK, self.SHORT_RUN, self.FEW_LAYERS)

    @property
    def is_search_probe(self) -> bool:
        """Whether it is the first, rough timing of a search, which cannot decide the fastest plan."""
        return self in (self.ONE_BLOCK, self.SHORT_RUN)

    @property
    def has_published_error(self) -> bool:
        """Whether times with this origin are compared with published times (`analysis.accuracy`)."""
        return self in (self.BUNDLES, self.PUBLISHED)

    @property
    def phrase(self) -> str:
        """The cost of tiles as a noun phrase."""
        return PHRASES.get(self, f"the source {self}")

    @property
    def description(self) -> str:
        """Sentences for a reader of a report."""
        return DESCRIPTIONS[self]


PHRASES = {
    CostOrigin.DATASHEET: "the rates of the machine's datasheet",
    CostOrigin.ESTIMATED_CYCLES: "the compiler's estimated cycles",
    CostOrigin.BUNDLES: "the cycles of the compiler's final schedule",
    CostOrigin.PUBLISHED: "published times of the kernel",
    CostOrigin.MEASURED_BEFORE: "times of the kernel that stripectl measured on a GPU of this architecture",
    CostOrigin.MEASURED_STAGES: "measured kernels that compute the chunks of a recurrence in stages",
}
DESCRIPTIONS = {
    CostOrigin.MEASURED_TILE: "Tiles were timed on this machine: whole, boundary and dead tiles separately, for one "
    "key/value head and the query heads that share it, or on a GPU for as many heads as the workload has, up to 64. A "
    "cost was fitted to each kind; a block held out of the fit "
    "gives the error.",
    CostOrigin.ESTIMATED_CYCLES: "Nothing was timed. Tiles take the cycles that the target's compiler estimates for "
    "the tile loops of one small program, at the clock rate of the chip; hops take the time of the links that they "
    "cross.",
    CostOrigin.BUNDLES: "Nothing was timed. Tiles take the bundles of the Pallas kernels in the compiler's final "
    "schedule of one small program, about one cycle each, or the time of their matmuls at the peak rate where that is "
    "longer. All schemes, meshes and lengths use the same costs.",
    CostOrigin.PUBLISHED: "Nothing was timed here. Tiles take times derived from published times of the kernel, "
    "distributed in waves over the processors of the GPU.",
    CostOrigin.MEASURED_BEFORE: "Nothing was timed here. Tiles take times derived from times that stripectl measured "
    "on a GPU of this architecture (`make check-gpu`).",
    CostOrigin.MEASURED_STAGES: "Nothing was timed here. A chunk of a recurrence takes the memory traffic of its "
    "stages at the share of the memory's rate that measured kernels reach on a GPU of this architecture, and a step in "
    "the order of the chunks. The measurements have no backward pass, which takes the forward pass's share.",
    CostOrigin.NONE: "No time is predicted, because a figure that the prediction needs is not published.",
    CostOrigin.DATASHEET: "Nothing was timed. Tiles and hops take the times that the machine's published figures "
    "allow.",
    CostOrigin.ONE_BLOCK: "Tiles were timed on this machine on one block of whole scores: the first step of a search.",
    CostOrigin.FEW_LAYERS: "Steps of few layers ran here; the model's step adds the time of one layer for each "
    "further layer.",
    CostOrigin.SHORT_RUN: "The plan ran here with one key/value group per device; its time is multiplied by the "
    "groups.",
}


@dataclass(frozen=True, kw_only=True)
class HopCost:
    """The cost of a hop: latency, where it is known, and bytes/s one way."""

    latency_s: float | None
    bytes_per_s_one_way: float


@dataclass(frozen=True, kw_only=True)
class SlowestHop(Sparse):
    """The slowest hop of an axis where some hops share links or cross several."""

    slowest_bytes_per_s: float | None = None
    longest_latency_s: float | None = None

    def __str__(self) -> str:
        """Its rate and latency, as far as they are known."""
        slowest, longest = self.slowest_bytes_per_s, self.longest_latency_s
        return ", ".join(
            ([rate(slowest, "B/s")] if slowest is not None else [])
            + ([duration(longest)] if longest is not None else [])
        )


@dataclass(frozen=True, kw_only=True)
class CostDisagreement:
    """A tile whose cycles in a plan's own program differ from the table."""

    passes: str
    tile: str
    program_cycles: float
    table_cycles: float


# The largest distance of a tile from the nearest entry: docs/explanation/simulation.md says how far costs err.
FAR = 1.0


@dataclass(frozen=True, kw_only=True)
class TableSource(Sparse):
    """The table of tile costs, its maker, the program that made it, and the nearest entry where the shape has none.

    For a tile without an entry, `distance` is the distance of the nearest tile (`Tile.distance`: 1.0 where one side is
    twice as long), and `sizes` is the number of tiles whose trend its cost follows.
    """

    table: str | None = None
    made_by: str | None = None
    interpolated_from: str | None = None
    distance: float | None = None
    sizes: int | None = None
    program: str | None = None

    @property
    def is_far(self) -> bool:
        """Whether the tile has no entry near it, or no trend is known: its sides and the sides of the nearest entry
        differ by more than a factor of two."""
        return self.distance is not None and (self.distance > FAR or self.sizes == 1)


@dataclass(frozen=True, kw_only=True)
class Rates(Sparse):
    """The clock rate of a table's cycles, or the rate of a datasheet's matmuls: its peak, or what is achievable."""

    clock_hz: float | None = None
    flops_per_s: float | None = None
    rate_is: str | None = None


@dataclass(frozen=True, kw_only=True)
class Stages(Sparse):
    """The measured kernel whose stages a chunk of a recurrence takes the time of, and the GPU that ran it: the share of
    the memory's rate that the stages reach together, the seconds of a step from one chunk of a sequence to the next,
    and the seconds of a call without its chunks."""

    measured_on: str | None = None
    measured_kernel: str | None = None
    memory_share: float | None = None
    step_s: float | None = None
    stages_call_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class LinkCosts(Sparse):
    """The cost of a hop, and of slower hops by axis; `gathers_by_all_reduce` holds the axes, as `ring+ulysses`, over
    which an all-gather is compiled as an all-reduce."""

    hop: HopCost | None = None
    slower_hops: Mapping[str, SlowestHop] | None = None
    gathers_by_all_reduce: tuple[str, ...] = ()

    @property
    def slowest_bytes_per_s(self) -> float | None:
        """Bytes/s, one way, of the slowest hop."""
        known = [self.hop.bytes_per_s_one_way] if self.hop else []
        slower = [each.slowest_bytes_per_s for each in (self.slower_hops or {}).values()]
        return min([*known, *filter(None, slower)], default=None)


@dataclass(frozen=True, kw_only=True)
class Timings(Sparse):
    """The timings of this machine: the tile of each pass; for a search's probe, the block and its samples by pass
    (`coarse`), or the samples of short runs of some heads, which count several `times`, and the warm-up run before full
    runs."""

    tile: str | None = None
    backward_tile: str | None = None
    block: str | None = None
    coarse: Mapping[str, tuple[float, ...]] | None = None
    shorts_s: tuple[float, ...] = ()
    warmup_s: float | None = None
    heads: int | None = None
    times: float | None = None


@dataclass(frozen=True, kw_only=True)
class FewLayers(Sparse):
    """Steps of a model's few layers that ran: how many, the model's layers, the time of a layer, and the samples."""

    layers_run: tuple[int, ...] = ()
    layers: int | None = None
    layer_s: float | None = None
    samples_by_layers: Mapping[str, tuple[float, ...]] | None = None


@dataclass(frozen=True, kw_only=True)
class CostSource(Sparse):
    """The source of a time: the origin of tile costs, the costs of a tile and a hop, and what is not modelled. Each
    origin has a record of its own, whose fields are written into the JSON of the source.

    `exposed` holds the share of transfers during which the compiler's schedule runs no tiles, by pass, opcode and bytes
    per element. `sources` names the publication of each figure of the datasheet. A backward pass that is deterministic
    takes `deterministic_backward` times as long. `softmax` is the source of the softmax layers in a model that also has
    linear layers, and `sliding` of layers with shorter windows than others.
    """

    source: CostOrigin
    predicted: bool = False
    entry: Annotated[TableSource, INLINE] = field(default_factory=TableSource)
    timings: Annotated[Timings, INLINE] = field(default_factory=Timings)
    forward: TileCost | None = None
    backward: TileCost | None = None
    backward_costs: TableSource | None = None
    links: Annotated[LinkCosts, INLINE] = field(default_factory=LinkCosts)
    exposed: Mapping[str, float] | None = None
    rates: Annotated[Rates, INLINE] = field(default_factory=Rates)
    stages: Annotated[Stages, INLINE] = field(default_factory=Stages)
    sources: Mapping[str, str] | None = None
    left_out: str | None = None
    memory_left_out: str | None = None
    not_compiled: str | None = None
    disagrees: tuple[CostDisagreement, ...] = ()
    deterministic_backward: float | None = None
    softmax: "CostSource | None" = None
    sliding: "CostSource | None" = None
    few_layers: Annotated[FewLayers, INLINE] = field(default_factory=FewLayers)

    @property
    def apart(self) -> dict[str, "CostSource"]:
        """The sources of the layers that a plan names apart, by the part of the plan."""
        return {part: own for part, own in (("softmax", self.softmax), ("sliding", self.sliding)) if own}

    @property
    def by_pass(self) -> dict[str, TileCost]:
        """The cost of tiles, by pass."""
        return {name: own for name, own in (("forward", self.forward), ("backward", self.backward)) if own}


FROM_DATASHEET = CostSource(source=CostOrigin.DATASHEET)
