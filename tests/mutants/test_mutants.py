"""Deliberate faults are still faults of this code; `python -m tests.mutants` says whether tests find them."""

from collections import Counter

import pytest

from tests.mutants.__main__ import Fault, faults, faulty


@pytest.mark.parametrize("fault", faults(), ids=lambda fault: f"{fault.file}: {fault.new}")
def test_a_fault_replaces_a_text_that_stands_once(fault: Fault) -> None:
    assert fault.new in faulty(fault)


def test_each_area_has_five() -> None:
    assert set(Counter(fault.area for fault in faults()).values()) == {5}
