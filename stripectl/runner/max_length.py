"""The longest sequence that fits with a plan: by the compiler, or without a compiler by the simulated memory.

Lengths are multiples of devices x tile. A plan's memory grows almost linearly with the length, so each guess is where
the line through the last two lengths reaches the memory's limit, between lengths known to fit and known not to fit; the
answer is a length that fits while the next step is refused.
"""

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

from stripectl.core.kernel import MIN_TILE_ROWS, kernels
from stripectl.core.layer_groups import layer_groups
from stripectl.core.layout import Tile, layouts
from stripectl.core.lengths import MAX_SEQ_LEN, format_length
from stripectl.core.plan import Plan
from stripectl.core.reason import Reason
from stripectl.core.workload import Workload
from stripectl.costs.default_tiles import with_tile
from stripectl.measure.local_target import LocalTarget
from stripectl.results.backend import Backend, Event, Final, finals
from stripectl.results.case import Case
from stripectl.results.compiled_program import CompiledProgram, LongestSequence
from stripectl.results.measurement import Measurement
from stripectl.runner.cases import case_of, complete, why_refused, with_named_parts
from stripectl.runner.replaced_parts import replaced_parts
from stripectl.runner.request import Request

LONG_ROWS, LONG_LEN = 2**15, 2**24  # of a device, and of a sequence, for which tiles are chosen
Attempt = Callable[[Workload], Measurement]  # ok or refused, with peak_bytes where they are known


def with_long_tiles(case: Case, place: LocalTarget) -> Plan:
    """Name the parts of a case's plan, with the default tiles of a long sequence, because each length that
    is tried must hold whole tiles. A kernel that keeps all scores has another tile for each length."""
    hardware = place.target.hardware
    long = replace(case.workload, seq_len=min(LONG_LEN, LONG_ROWS * place.target.devices))
    named = with_named_parts(replace(case, workload=long), place)
    if any(kernels[group.plan.kernel].keeps_all_scores for group in named.layers):
        return named.plan
    if why_refused(named.plan, long, hardware):
        return named.plan
    return with_tile(named.plan, long, hardware, case.flags or {})


def length_step(plan: Plan, workload: Workload) -> int:
    """The shortest sequence that fills every device with whole tiles and holds the queries; the answer is a multiple of
    it."""
    tiles = [tile for _, _, each in layer_groups(workload, plan) for tile in (each.tile, each.backward) if tile]
    sides = itertools.chain.from_iterable(tile.sides for tile in tiles or [Tile(MIN_TILE_ROWS, MIN_TILE_ROWS)])
    piece = math.lcm(*sides, plan.sequence_devices // plan.shards)
    step = plan.shards * layouts[plan.layout].pieces * piece
    return step * -(-(workload.query_len or 1) // step)


def max_length_cases(request: Request, place: LocalTarget) -> list[Case]:
    """One case per pass, plan and set of flags, with the shortest sequence that fills the devices."""
    found = list[Case]()
    method = "simulated" if request.method == "simulated" else "compiled"
    for workload, plan, flags in itertools.product(request.workloads, request.plans, request.flags):
        asked = case_of(workload, plan, flags, place, request.case_method)
        meshed = with_long_tiles(asked, place)
        shortest = replace(workload, seq_len=length_step(meshed, workload))
        case = complete(replace(asked, workload=shortest, plan=meshed), place, describe=False)
        found.append(replace(case, plan=meshed, method=method))
    return found


def max_length(request: Request, place: LocalTarget, attempts: Backend, explained: Backend) -> Iterator[Event]:
    """The longest sequence of every plan, by pass, except those in a resumed run. `attempts` tries each length, and
    `explained` computes the longest length again, if it is another backend."""
    for case in max_length_cases(request, place):

        def asked(backend: Backend, longer: Workload, case: Case = case) -> Measurement:
            plan = with_tile(case.plan, longer, place.target.hardware, case.flags or {})
            full = replace(case, workload=longer, plan=plan, distortions=replaced_parts(longer))
            (found,) = finals(backend.run([full]))
            return found

        sought = (replace(m, workload=replace(m.workload, seq_len=case.workload.seq_len)) for m in request.previous)
        if any(m.identity == case.identity and m.compiled_program and m.compiled_program.longest for m in sought):
            continue
        found = search_max_length(case, partial(asked, attempts)) if case.is_ready else Measurement.of(case)
        if explained is not attempts and found.status == "ok":
            found = replace(asked(explained, found.workload), compiled_program=found.compiled_program)
        yield Final(found)


def search_max_length(case: Case, attempt: Attempt) -> Measurement:
    """Search for the longest sequence that fits; refuse the case where not even the shortest fits.

    `compiled_program.longest` holds the step, the length one step further, and why that is refused; where the
    compiler fails at a length, the search ends there with the longest length known to fit.
    """
    step, workload = length_step(case.plan, case.workload), case.workload
    known: dict[int, Measurement] = {}

    def fits(steps: int) -> bool:
        if steps not in known:
            known[steps] = attempt(replace(workload, seq_len=steps * step))
        return known[steps].status == "ok"

    if not fits(1):
        return known[1]
    low, high = 1, MAX_SEQ_LEN // step + 1  # the first fits, the second does not, or cannot exist
    guess = 2
    while high - low > 1:
        low, high = (guess, high) if fits(guess) else (low, guess)
        if known[guess].status == "failed":
            break
        guess = min(max(_memory_ends(known, low), low + 1), high - 1)
    reason = Reason.unsupported(f"positions are 32-bit: at most {format_length(MAX_SEQ_LEN)}")
    if refused := known.get(high):
        reason = refused.reason
    longest = LongestSequence(step=step, refused=high * step, reason=reason)
    program = known[low].compiled_program or CompiledProgram()
    return replace(known[low], compiled_program=replace(program, longest=longest))


def _memory_ends(known: dict[int, Measurement], low: int) -> int:
    """Where the line through the two longest fitting lengths reaches the memory limit, at most twice the longest."""
    fitting = sorted(steps for steps, m in known.items() if m.status == "ok" and m.peak_bytes)
    have = known[low].hbm_bytes
    if len(fitting) < 2 or not have:
        return 2 * low
    (a, first), (b, second) = ((steps, known[steps].peak_bytes or 0) for steps in fitting[-2:])
    slope = (second - first) / (b - a)
    refused = min((steps for steps, m in known.items() if m.status == "refused"), default=None)
    meets = int(b + (have - second) / slope) if slope > 0 else 2 * low
    if refused is None:
        return min(meets, 16 * low)
    return meets if low < meets < refused and meets not in known else (low + refused) // 2
