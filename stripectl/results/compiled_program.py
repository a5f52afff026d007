"""The compiler's report on a plan's program: collectives and their schedule, rewrites, and cycles."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from stripectl.core.reason import Reason
from stripectl.results.records import Amount, Count, Sparse


@dataclass(frozen=True, kw_only=True)
class ScheduledCollective:
    """Equal transfers: their part of a training step, the mesh axes that they use, the bytes that a device sends each
    time, the number of runs, and their schedule."""

    section: str | None = None
    axis: str | None = None
    opcode: str
    passes: str
    dtype: str
    sent_bytes: Count
    times: Count
    asynchronous: bool
    beside_tiles: bool
    beside_work: bool = False


@dataclass(frozen=True)
class Rewrite:
    """`transfers` of the program that the compiler changed, and the bytes by which a device's total grew."""

    name: str
    transfers: int
    bytes: int


@dataclass(frozen=True, kw_only=True)
class LoopCopies(Sparse):
    """Copies of whole arrays in a ring's loops: the number per round, the bytes that they move, and an estimate of
    their time."""

    per_round: Count
    bytes_per_round: Count
    s_per_round: Amount | None = None


@dataclass(frozen=True, kw_only=True)
class LongestSequence:
    """The result of a search for the longest sequence: its step in tokens, the length that is refused, and the
    reason."""

    step: int | None = None
    refused: Count
    reason: Reason | None


@dataclass(frozen=True)
class KernelBundles:
    """A kernel's bundles on one core, by how often they are issued.

    A program's tiles then cost `tile + step` for each computed whole tile, `boundary + step` for each boundary tile,
    `step` for each dead tile, and `row` for each row of tiles (for dK/dV: each column, for a key/value head).
    """

    name: str  # as in the HLO
    steps: int | None  # of the grid, on one core; None where only the device knows its length
    tile: float  # of a step that computes a whole tile
    boundary: float  # of a step that computes a boundary tile
    step: float  # of every step in addition: the loop, addresses, starting copies
    row: float  # of the start and the end of a row of tiles
    masked: bool  # whether a step can skip its tile; where it cannot, `tile` holds most of the step's bundles
    boundary_matmuls: float = 1.0  # of a boundary tile, over a whole tile's: a kernel may leave out its dead parts
    units: Mapping[str, float] = field(default_factory=dict[str, float])  # cycles of a whole tile, by the core's unit


@dataclass(frozen=True, kw_only=True)
class CompiledProgram:
    """The compiler's report. `cycles` are estimates of attention by pass, for a tile of each kind; `beside` of the
    other parts of a training step."""

    compiler: str | None = None
    collectives: tuple[ScheduledCollective, ...] = ()
    rewrites: tuple[Rewrite, ...] = ()
    copies: LoopCopies | None = None
    cycles: Mapping[str, Mapping[str, float]] | None = None
    beside: Mapping[str, float] | None = None
    bundles: tuple[KernelBundles, ...] | None = None
    longest: LongestSequence | None = None
