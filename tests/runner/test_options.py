"""Options as the user named them."""

from dataclasses import fields

import pytest

from stripectl.runner.options import SIZE_OPTIONS, RequestOptions, WorkloadOptions


@pytest.mark.parametrize("name", [each.name for each in fields(WorkloadOptions)])
def test_an_option_of_the_workload_is_known_to_be_named(name: str) -> None:
    named = RequestOptions.of({name: "1"})
    assert named.has_workload and named.has_size == (name in SIZE_OPTIONS)


def test_other_options_name_no_workload() -> None:
    others = {each.name for each in fields(RequestOptions)} - {each.name for each in fields(WorkloadOptions)}
    assert not RequestOptions.of(dict.fromkeys(others, "1")).has_workload
