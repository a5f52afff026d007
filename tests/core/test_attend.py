"""Everything that implements `attend` and `comm` takes the parameters that a scheme may pass."""

import inspect
from typing import Protocol

import pytest

from stripectl.core import attend, comm
from stripectl.execute.attend import JaxAttend
from stripectl.execute.comm import JaxComm
from stripectl.execute.fused_hops import FusedHopAttend, FusedHopComm
from stripectl.execute.linear_attend import JaxGatedAttend, JaxLinearAttend
from stripectl.simulate.attend import SimulatedAttend
from stripectl.simulate.comm import SimulatedComm
from stripectl.simulate.gated_attend import SimulatedGatedAttend

FAMILIES = [
    each
    for each in vars(attend).values()
    if isinstance(each, type) and Protocol in each.__mro__ and each is not Protocol
]
SOFTMAX = [each for each in FAMILIES if each is not attend.LinearAttend]
IMPLEMENTATIONS = [
    (SimulatedAttend, FAMILIES),
    (JaxLinearAttend, FAMILIES),
    *((each, [attend.LinearAttend]) for each in (JaxGatedAttend, SimulatedGatedAttend)),
    (JaxAttend, SOFTMAX),
    (FusedHopAttend, SOFTMAX),
    *((each, [comm.Comm]) for each in (SimulatedComm, JaxComm, FusedHopComm)),
]


def operations(protocol: type) -> set[str]:
    members = {name for each in protocol.__mro__ if each.__module__.startswith("stripectl") for name in vars(each)}
    return {name for name in members if not name.startswith("_")} | {"__call__"} & vars(protocol).keys()


@pytest.mark.parametrize(
    ("implementation", "protocols"), IMPLEMENTATIONS, ids=lambda each: getattr(each, "__name__", "")
)
def test_an_implementation_has_every_operation_with_its_parameters(implementation: type, protocols: list[type]) -> None:
    differences = {}
    for protocol in protocols:
        for name in operations(protocol):
            wanted, found = getattr(protocol, name), getattr(implementation, name, None)
            if found is None:
                # A field that __init__ sets.
                if f"self.{name}," not in inspect.getsource(implementation):
                    differences[name] = None
            elif callable(wanted) and [*inspect.signature(wanted).parameters] != [*inspect.signature(found).parameters]:
                differences[name] = str(inspect.signature(found))
    assert not differences


def test_the_smallest_family_is_enough_for_a_ring() -> None:
    assert operations(attend.Attend) <= {"rounds", "empty", "query", "__call__", "backward", "zeros", "add"}
