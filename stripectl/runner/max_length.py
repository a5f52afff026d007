"""The longest sequence that a plan fits: the compiler says so, or where it is not here what arrays on clocks add up to.

Lengths are multiples of devices x tile. What a plan needs grows almost linearly with the length, so each guess is where
the line through the last two says the memory ends, kept inside what is known to fit and known not to; the answer is a
length that fits whose next step is refused.
"""

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import replace

from stripectl.compile.compiler import Compilers, compiled
from stripectl.core.defaults import with_tile
from stripectl.core.kernel import LEAST_SIDE, kernels
from stripectl.core.layer_groups import joined, layers_of
from stripectl.core.layout import Tile, layouts
from stripectl.core.plan import Plan, parse_plan
from stripectl.core.workload import LONGEST, Workload, format_length
from stripectl.measure.device_pool import Devices, Place
from stripectl.results.measurement import Measurement
from stripectl.runner.backends import simulated
from stripectl.runner.request import Request
from stripectl.runner.search import time_plans
from stripectl.runner.static_facts import described, refused

Attempt = Callable[[Workload], Measurement]  # ok or refused, with peak_bytes where it is known


def with_default_tile(plan: Plan, workload: Workload, kind: str) -> Plan:
    """The plan with its kernels' own tiles: those of a sequence that is long. One without tiles gets them by length."""

    def tiled(plan: Plan) -> Plan:
        kernel = kernels[plan.kernel]
        return plan if plan.tile or kernel.whole else replace(plan, tile=kernel.default_tile(kind))

    return joined([tiled(each) for _, _, each in layers_of(workload, plan)])


def step_of(plan: Plan, workload: Workload) -> int:
    """The smallest sequence that fills every device with whole tiles, and holds the queries; the answer is a multiple
    of it."""
    tiles = [tile for _, _, each in layers_of(workload, plan) for tile in (each.tile, each.backward) if tile]
    sides = itertools.chain.from_iterable(tiles or [Tile(LEAST_SIDE, LEAST_SIDE)])
    piece = math.lcm(*sides, plan.cut // plan.shards)
    step = plan.shards * layouts[plan.layout].pieces * piece
    return step * -(-(workload.query_len or 1) // step)


def longest_cases(request: Request, place: Place) -> list[Measurement]:
    """One measurement to be made a pass, plan and set of flags, of the shortest sequence that fills the devices."""
    found, kind = [], place.target.hardware.kind
    for workload, plan, flags in itertools.product(request.workloads, request.plans, request.flags):
        usual = with_default_tile(request.meshed(plan, workload, place), workload, kind)
        shorter = replace(workload, seq_len=step_of(usual, workload))
        meshed = with_default_tile(request.meshed(plan, shorter, place), workload, kind)
        shortest = replace(workload, seq_len=step_of(meshed, workload))
        method = "simulated" if request.method == "simulated" else "compiled"
        case = Measurement(workload=shortest, plan=str(meshed), target=str(place.target), method=method)
        reason = refused(meshed, shortest, place.target.hardware, place.target.devices)
        found.append(replace(case, flags=flags or None, status="refused" if reason else "ok", reason=reason))
    return found


def longest_of(
    request: Request, place: Place, devices: Devices, compilers: Compilers, compiling: bool
) -> Iterator[Measurement]:
    """The longest sequence of every plan, by pass, as the compiler says or clocks do; those that a run that is resumed
    holds are not sought again."""
    hardware = place.target.hardware
    for case in longest_cases(request, place):

        def at_length(longer: Workload, case: Measurement = case) -> Measurement:
            full = with_tile(parse_plan(case.plan), longer, hardware.kind)
            return replace(case, workload=longer, plan=str(full))

        def compile_length(longer: Workload, at_length: Attempt = at_length) -> Measurement:
            asked = at_length(longer)
            compilers.say(f"compile {longer.passes} of {asked.plan} at {format_length(longer.seq_len)}", 0, 1)
            return compiled(described(asked, hardware), place.target, compilers)

        def simulate_length(longer: Workload, at_length: Attempt = at_length) -> Measurement:
            return next(time_plans([at_length(longer)], place, devices))

        sought = (replace(m, workload=replace(m.workload, seq_len=case.workload.seq_len)) for m in request.done)
        if any(m.what == case.what and (m.program or {}).get("longest") for m in sought):
            continue
        if case.status != "ok" or compiling:
            yield longest(case, parse_plan(case.plan), compile_length) if case.status == "ok" else case
            continue
        found = longest(case, parse_plan(case.plan), simulate_length)
        whole = simulated(described(at_length(found.workload), hardware), place, devices)
        yield replace(whole, program=found.program)


def longest(template: Measurement, plan: Plan, attempt: Attempt) -> Measurement:
    """The measurement of the longest sequence that fits; refused where not even the shortest does.

    `program.longest` says the step, the length one step on, and why that is refused; where the compiler fails at a
    length, the search ends there with what is known to fit.
    """
    step, workload = step_of(plan, template.workload), template.workload
    known: dict[int, Measurement] = {}

    def fits(steps: int) -> bool:
        if steps not in known:
            known[steps] = attempt(replace(workload, seq_len=steps * step))
        return known[steps].status == "ok"

    if not fits(1):
        return known[1]
    low, high = 1, LONGEST // step + 1  # the first fits, the second does not or cannot be
    guess = 2
    while high - low > 1:
        low, high = (guess, high) if fits(guess) else (low, guess)
        if known[guess].status == "failed":
            break
        guess = min(max(_memory_ends(known, low), low + 1), high - 1)
    refused = known.get(high)
    return replace(
        known[low],
        program={
            **(known[low].program or {}),
            "longest": {
                "step": step,
                "refused": high * step,
                "reason": refused.reason if refused else f"positions are 32-bit: at most {format_length(LONGEST)}",
            },
        },
    )


def _memory_ends(known: dict[int, Measurement], low: int) -> int:
    """Where the line through the two longest that fit meets the memory there is; twice the longest where it is far."""
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
