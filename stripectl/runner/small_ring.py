"""The small ring of a machine that is too small for the requested ring: measured, and compared with its simulation."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from stripectl.core.workload import STEP
from stripectl.costs.defaults import with_defaults
from stripectl.hardware.target import Target
from stripectl.measure.local_target import LocalTarget
from stripectl.results.backend import Backend, Event, Final, finals
from stripectl.results.case import Case
from stripectl.results.measurement import Measurement
from stripectl.runner.backends import Backends, run_one_by_one
from stripectl.runner.cases import already_measured, bench_cases
from stripectl.runner.request import SMALL_HEADS, SMALL_LEN, Request
from stripectl.simulate.sensitivity import with_estimated_sensitivity
from stripectl.util.progress import Say

SMALL_SHARE = 0.45  # of the remaining budget, for sampling the small ring


def small_ring(request: Request, backends: Backends, left_s: Callable[[], float], say: Say) -> Iterator[Event]:
    """The ring that this machine can run, measured, and the same ring simulated from the same tiles. It is as long, and
    has as many heads, as the samples' budget allows; a resumed run keeps its ring."""
    place = backends.place
    local = replace(place, target=Target(place.target.hardware, (place.here,)))
    asked, turns = replace(request, method="measured"), request.sampling.min_samples + request.sampling.warmup
    sizes = itertools.product((SMALL_LEN, SMALL_LEN // 2, SMALL_LEN // 4), (SMALL_HEADS, 2, 1))
    rings = [small_cases(request, local, *size, say) for size in sizes]
    begun = [ring for ring in rings if any(request.was_run(case, "measured") for case in ring)][:1]
    for ring in begun or rings:
        missing = [case for case in ring if not already_measured(asked, case)]
        if begun and not missing and all(request.was_run(case, "simulated") for case in ring):
            return
        expected = finals(run_one_by_one(backends.simulated(local), ring))
        if expected and (begun or turns * total_seconds(expected) <= SMALL_SHARE * left_s()):
            yield from measured_by_pass(backends.measured(local), missing, expected, left_s)
            return


def measured_by_pass(
    measured: Backend, cases: Sequence[Case], expected: Sequence[Measurement], left_s: Callable[[], float]
) -> Iterator[Event]:
    """The cases, measured pass by pass, each with a share of the budget by its expected time; then, also where an
    interrupt ends them, what was expected."""
    try:
        for passes in dict.fromkeys(case.workload.passes for case in cases):
            group = [case for case in cases if case.workload.passes == passes]
            own = [each for each in expected if each.workload.passes == passes]
            share_s = SMALL_SHARE * left_s() * total_seconds(own) / total_seconds(expected)
            yield from with_estimated_sensitivity(measured.run(group, share_s), expected)
    except KeyboardInterrupt:
        yield from map(Final, expected)
        raise
    yield from map(Final, expected)


def total_seconds(made: Sequence[Measurement]) -> float:
    """The time of all of them together; those without a time take none."""
    return sum(each.median_s or 0.0 for each in made)


def small_cases(request: Request, place: LocalTarget, seq_len: int, groups: int, say: Say) -> list[Case]:
    """The request reduced to `seq_len` tokens and `groups` key/value heads, on the devices of `place`, without cases
    that cannot be reduced. Tiles come from the longest length, so that they are timed once."""
    attention = [workload for workload in request.workloads if workload.passes != STEP]
    if not attention or groups > (first := attention[0]).kv_heads:
        return []
    if not (first.query_len or 0) <= seq_len <= first.seq_len:
        return []
    cut = {"heads": groups * (first.heads // first.kv_heads), "kv_heads": groups, "batch": 1, "model": None}
    hardware, devices = place.target.hardware, place.target.devices
    found = list[Case]()
    for passes in dict.fromkeys(workload.passes for workload in attention):
        longest = replace(first, seq_len=SMALL_LEN, passes=passes, **cut)
        bare = (replace(plan, mesh=None) for plan in request.plans)
        plans = dict.fromkeys(with_defaults(each, longest, hardware, devices, timed=place.timed) for each in bare)
        small = replace(request, workloads=[replace(longest, seq_len=seq_len)], plans=list(plans))
        found += bench_cases(small, place, say)
    return [case for case in found if case.is_ready]
