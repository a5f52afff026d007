"""Finds the best of many plans: all are simulated, and the most promising are compiled, or measured where they can
run."""

import time
from collections.abc import Iterator, Sequence

from stripectl.results.backend import Backend, Event, Final, SearchResult, finals
from stripectl.results.case import Case
from stripectl.results.search_table import SearchTable
from stripectl.runner.backends import Backends
from stripectl.runner.cases import already_measured, compiling, one_device
from stripectl.runner.meshes import MAX_FULL_ROWS, notable_plans, promising_plans
from stripectl.runner.request import Request
from stripectl.runner.static_facts import with_static_facts
from stripectl.simulate.sensitivity import with_estimated_sensitivity


def run_search(request: Request, group: Sequence[Case], backends: Backends, budget_s: float) -> Iterator[Event]:
    """Simulate the cases of one workload, and of many cases keep the notable cases. The most promising of each scheme
    and mesh are compiled too, or measured where they can run; if one is refused, the next takes its place. Then the
    baseline on one device, with the kernel and tile of the fastest plan, and, for many cases, a table of all."""
    started, place, search = time.monotonic(), backends.place, None
    simulated = backends.simulated(place)
    known, asked = finals(simulated.run(group)), {case.identity: case for case in group}
    if len(known) > MAX_FULL_ROWS:
        search = SearchTable.of(known, time.monotonic() - started)
        known = notable_plans(known)
    before = {key: m for key, m in request.previous_by_key.items() if not m.is_unfinished}
    yield from (Final(m) for m in known if m.key not in before)
    ranked = promising_plans(known)
    left = [with_static_facts(asked[m.identity], place.target.hardware) for m in ranked]
    if compiling(request, place):
        yield from compile_promising(request, left, backends.compiled(place))
    elif request.method != "simulated" and all(m.devices <= place.here for m in left):
        # Timing them again might choose others.
        left.sort(key=lambda case: not request.was_run(case, "measured"))
        chosen = [case for case in left[: request.refine_count] if (*case.identity, "measured") not in before]
        yield from with_estimated_sensitivity(backends.measured(place).run(chosen, budget_s), known)
    alone = one_device(request, place, [asked[m.identity] for m in ranked]) if request.baseline else []
    alone = [case for case in alone if not already_measured(request, case)]
    yield from map(Final, finals(simulated.run(alone)))
    yield from [SearchResult(search)] if search else []


def compile_promising(request: Request, left: Sequence[Case], compiled: Backend) -> Iterator[Event]:
    """The first of these cases that the compiler does not refuse, as many as the request refines."""
    done = 0
    for case in left:
        made = request.previous_by_key.get((*case.identity, "compiled"))
        if made is None or made.is_unfinished:
            (made,) = finals(compiled.run([case]))
            yield Final(made)
        if (done := done + (made.status == "ok")) == request.refine_count:
            return
