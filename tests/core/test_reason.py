"""Reasons are printed as one sentence or two, kept by their kind, and decided by nothing else."""

import json
from dataclasses import replace
from typing import Literal

import pytest

from stripectl.cli.session import exit_code
from stripectl.core.reason import Reason, ReasonKind
from stripectl.results.compiled_program import CompiledProgram, LongestSequence
from stripectl.results.measurement import Measurement
from stripectl.results.profile import Profile
from stripectl.runner.open_run import is_tried_again
from tests.support.factories import measurement_of, run_of

TIMED = measurement_of("ring/striped/xla@ring=2,tile=128x128", method="measured", samples_s=(1.0, 1.0, 1.0))
WHYS = (
    Reason.unsupported("9 rows are odd", "Try --seqlen 8."),
    Reason.unsupported("9 rows are odd. They are few", "Try --seqlen 8. Or try another layout."),
    Reason(ReasonKind.ERROR, "it ended."),
    Reason(ReasonKind.TIMEOUT, "it took long", "Try a longer limit"),
)


def lost(why: Reason | None, status: Literal["failed", "refused"] = "failed") -> Measurement:
    return replace(TIMED, status=status, reason=why, samples_s=(), median_s=None)


@pytest.mark.parametrize("why", WHYS, ids=str)
def test_a_reason_survives_its_json_wherever_it_is(why: Reason) -> None:
    longest = CompiledProgram(longest=LongestSequence(refused=8, reason=why))
    m = replace(lost(why), profile=Profile(reason=why), compiled_program=longest)
    content = json.loads(json.dumps(m.to_json()))
    for each in (content, content["profile"], content["compiled_program"]["longest"]):
        assert (each["reason"], each["kind"], each["advice"]) == (str(why), why.kind, why.advice or None)
    again = Measurement.from_json(content)
    assert (again.reason, again.profile, again.compiled_program) == (why, m.profile, longest)


@pytest.mark.parametrize("kind", [None, "of a newer stripectl", ["error"]])
def test_a_reason_without_a_kind_that_is_known_keeps_its_words(kind: object) -> None:
    content = dict(lost(WHYS[0]).to_json()) | {"kind": kind, "advice": "Something else."}
    found = Measurement.from_json(content).reason
    assert found and (found.kind, str(found)) == (ReasonKind.UNKNOWN, str(WHYS[0]))


def test_the_exit_code_follows_the_kind_whatever_the_words() -> None:
    right, wrong = lost(Reason(ReasonKind.ERROR, "wrong numbers: no")), lost(Reason(ReasonKind.WRONG_NUMBERS, "not so"))
    assert [exit_code(run_of(m), False) for m in (TIMED, right, wrong)] == [0, 1, 4]
    seen = [replace(TIMED, profile=Profile(reason=Reason(kind, "no profile: x"))) for kind in ReasonKind]
    assert {m.profile.reason.kind for m in seen if m.profile and m.profile.reason and exit_code(run_of(m), False)} == {
        ReasonKind.NO_PROFILE
    }


def test_a_resumed_run_tries_again_what_failed_or_may_be_possible_now() -> None:
    refused = {kind for kind in ReasonKind if is_tried_again(lost(Reason(kind, "a host was lost"), "refused"))}
    assert refused == {ReasonKind.HOST_LOST, ReasonKind.UNKNOWN}
    assert all(is_tried_again(lost(Reason(kind, "x"))) for kind in ReasonKind)


def test_what_has_a_time_and_a_reason_is_unfinished() -> None:
    cut = replace(TIMED, reason=Reason(ReasonKind.UNKNOWN, "of a run of schema 2"))
    assert cut.is_unfinished and not TIMED.is_unfinished and not lost(WHYS[0]).is_unfinished
