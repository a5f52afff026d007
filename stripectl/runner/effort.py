"""Options of effort that no method of a run uses."""

from collections.abc import Iterator, Mapping

from stripectl.errors import BadInput
from stripectl.measure.local_target import LocalTarget
from stripectl.results.backend import Notice
from stripectl.runner.cases import compiling
from stripectl.runner.request import Request

# The options, with the methods that use them. `search` stands for a search over meshes or tiles that refines its best
# plans, and `timing` for tiles that a search of tiles times on this machine.
USED_BY: Mapping[str, frozenset[str]] = {
    "time_budget": frozenset({"measured", "timing"}),
    "min_samples": frozenset({"measured", "timing"}),
    "warmup": frozenset({"measured"}),
    "compile_timeout": frozenset({"measured", "compiled"}),
    "cache": frozenset({"compiled", "timing"}),
    "profile": frozenset({"measured"}),
    "refine": frozenset({"search"}),
}


def bench_methods(request: Request, place: LocalTarget) -> frozenset[str]:
    """The methods that a bench of this request may use on its target."""
    refines = frozenset({"search"} if request.is_search and request.method != "simulated" else ())
    if compiling(request, place):
        return refines | {"compiled"}
    if request.method == "measured" or (request.method == "auto" and place.here):
        return refines | {"measured"}
    return frozenset()


def unused_effort(request: Request, methods: frozenset[str]) -> Iterator[Notice]:
    """One line about the options of effort that the user named and no method uses.

    Raises:
        BadInput: there are such options, and the user named plans for them.
    """
    named = [*request.named_effort, *(["profile"] if request.sampling.profile_folder else [])]
    unused = [f"--{option_name(name, request)}" for name in named if not USED_BY[name] & methods]
    if not unused:
        return
    which, verb = " and ".join(unused), "have" if len(unused) > 1 else "has"
    used = sorted({method for name in named for method in USED_BY[name]} & {"measured", "compiled"})
    why = f"{which} {verb} no effect, because no plan of this run is {' or '.join(used) or 'refined'}"
    if request.names_plans:
        raise BadInput(f"{why}. Omit {which}, or try --method {used[0] if used else 'compiled'}.")
    yield Notice(f"{why}.", warns=True)


def option_name(name: str, request: Request) -> str:
    """An option as it is written on the command line."""
    return "no-cache" if name == "cache" and not request.use_cache else name.replace("_", "-")
