"""The candidates of a tile search for a plan: cases with the kernel's default first, and refused cases with their
reason."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from stripectl.core.kernel import KnownTile, kernels
from stripectl.core.layout import Tile
from stripectl.core.plan import Plan
from stripectl.core.reason import Reason, ReasonKind
from stripectl.costs.default_tiles import tiles_for
from stripectl.costs.keys_at_once import with_third_sides
from stripectl.errors import BadInput
from stripectl.measure.local_target import LocalTarget
from stripectl.results.case import Case
from stripectl.runner.cases import compiling, complete, make_case, why_not_installed, why_refused
from stripectl.runner.options import RequestOptions
from stripectl.runner.parse import parse_request
from stripectl.runner.plan_options import parse_tiles, plans_of
from stripectl.runner.request import Request
from stripectl.runner.tuning.successive_halving import HOPELESS
from stripectl.util.several import several

DEFAULT_COMPILED_TILES = 8


@dataclass(frozen=True, kw_only=True)
class TileSearch:
    """The request of `tune-tiles`: plans whose tiles are to be found, and how to search them. `refine_count` candidates
    are compiled where the target is not available here."""

    request: Request = field(default_factory=lambda: Request(workloads=(), plans=()))
    tiles: Sequence[Tile] = ()  # empty: the tiles of the kernel and the block
    strategy: str = "race"
    refine_count: int = DEFAULT_COMPILED_TILES

    @classmethod
    def of(cls, options: RequestOptions, strategy: str) -> "TileSearch":
        """The search that the options describe.

        Raises:
            BadInput: an option is wrong or contradicts a plan, or the length is `max`.
        """
        if options.finds_max_length:
            raise BadInput("cannot search tiles for --seqlen max because each length has different tiles. Try 256k.")
        tiles = tuple(dict.fromkeys(parse_tiles(options.tile)))
        request, count = parse_request(replace(options, tile=None)), options.refine or DEFAULT_COMPILED_TILES
        for plan in several(options.plan):
            plans_of(plan, options)
        return cls(request=request, tiles=tiles, strategy=strategy, refine_count=count)

    def only_simulates(self, place: LocalTarget) -> bool:
        """Whether tiles are only simulated: no device of the target's kind is here, and nothing is compiled."""
        return not place.is_timed and not compiling(self.request, place)


def forward_cases(tuning: TileSearch, asked: Case, place: LocalTarget) -> list[Case]:
    """The forward pass with every tile; one refused case where the plan cannot run at all."""
    bare = replace(asked, plan=replace(asked.plan, tile=None, backward=None))
    refused = why_refused(bare.plan, bare.workload, place.target.hardware, place.target.devices)
    if refused or why_not_installed(bare, tuning.request.method, place):
        return [complete(bare, place)]
    tiles = [asked.plan.tile] if asked.plan.tile else tuning.tiles
    tiles = tiles or searched_tiles(bare, place, "forward", tuning.only_simulates(place))
    return [_with_plan(bare, replace(bare.plan, tile=tile), place) for tile in tiles]


def backward_cases(tuning: TileSearch, asked: Case, place: LocalTarget, tile: Tile) -> list[Case]:
    """Both passes with the chosen tile of the forward pass, and every tile of the backward pass."""
    both = replace(asked, workload=replace(asked.workload, passes="forward-backward"))
    tiles = [asked.plan.backward] if asked.plan.backward else tuning.tiles
    tiles = tiles or searched_tiles(both, place, "backward", tuning.only_simulates(place))
    plans = (replace(both.plan, tile=tile, backward=None if own == tile else own) for own in tiles)
    return [_with_plan(both, plan, place) for plan in plans]


def _with_plan(case: Case, plan: Plan, place: LocalTarget) -> Case:
    return complete(replace(case, plan=plan, method="simulated"), place)


def searched_tiles(case: Case, place: LocalTarget, passes: str, every_third_side: bool) -> list[Tile]:
    """The tiles of the kernel: the default first, then the tile of a published sweep, then others, each with its best
    third side or with every third side."""
    workload, plan, hardware = case.workload, case.plan, place.target.hardware
    first = tile_of_sweep(case, place, passes)
    default, *others = tiles_for(plan, workload, hardware, passes, place.timed)
    found = list[Tile]()
    for tile in (default, *others):
        sides = with_third_sides(tile, workload, plan, hardware, passes)
        found += sides if every_third_side else sides[:1]
    return list(dict.fromkeys([default, *([first.tile] if first else []), *found]))


def tile_of_sweep(case: Case, place: LocalTarget, passes: str) -> KnownTile | None:
    """The tile of a published sweep with which the search of a pass begins, without the third side that the kernel
    takes by itself; None without such a tile, or where the plan cannot run with it."""
    kernel, kinds = kernels[case.plan.kernel], place.target.hardware.device_kinds
    found = kernel.known_tile and kernel.known_tile(case.workload, case.plan, kinds, passes)
    if not found:
        return None
    tile = kernel.shortest_name(found.tile)
    plan = case.plan.with_tile_of_pass(passes, tile)
    tried = make_case(case.workload, plan, {}, place, "simulated", describe=False)
    return KnownTile(tile, found.source) if tried.is_ready else None


def why_not_run(prior_s: Sequence[float | None], index: int) -> Reason:
    """Why a search did not run a candidate, from the priors of all candidates."""
    own, best = prior_s[index], min((known for known in prior_s if known is not None), default=None)
    worse = own / best if own and best else 1.0
    if worse > HOPELESS:
        fact = f"not run: its tiles compute {worse:.1f} times as many scores as the best candidate's."
        return Reason(ReasonKind.NOT_RUN, fact)
    return Reason(ReasonKind.NOT_RUN, "not run: the time budget was spent first", "Try a longer --time-budget.")
