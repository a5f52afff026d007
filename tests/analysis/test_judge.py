"""Verdicts: which measurements a claim is about, and when it holds of them."""

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stripectl.analysis.claim_verdicts import VERDICTS, Judgement, judge_claims
from stripectl.analysis.claims import parse_claim
from stripectl.analysis.metrics import METRICS
from stripectl.core.workload import Workload
from stripectl.errors import BadInput
from stripectl.results.measurement import Measurement
from tests.support.factories import FAST, SLOW, because, measurement_of, run_of, sampled_measurement_of

WORK = Workload(seq_len=2**18, heads=16, kv_heads=16, head_dim=128, model="1b")
CONTIGUOUS, STRIPED = "ring/contiguous/xla@ring=8,tile=512x512", "ring/striped/xla@ring=8,tile=512x512"
ULYSSES, ONE = "ulysses/contiguous/xla@ulysses=8,tile=1024x1024", "ring/contiguous/xla@ring=1,tile=512x512"


ON_CHIPS: dict[str, Any] = {"workload": WORK, "target": "v5e:2x4"}
m, sampled = partial(measurement_of, **ON_CHIPS), partial(sampled_measurement_of, **ON_CHIPS)


def judged(text: str, *measurements: Measurement) -> Judgement:
    (found,) = judge_claims([parse_claim(text)], [("run", run_of(*measurements))])
    return found


BOTH = (m(CONTIGUOUS, 1.8), m(STRIPED, 1.0))


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("striped >= 1.8 x ring", "PASS"),
        ("striped > 1.8 x ring", "FAIL"),
        ("striped <= 1.8 x ring", "PASS"),
        ("ring < 0.6 x striped", "PASS"),
        ("time <= 1 s", "FAIL"),
        ("time <= 1.8 s", "PASS"),
        ("striped time <= 1 s", "PASS"),
        ("striped speedup >= 1.75", "PASS"),
        ("tokens_per_s >= 262144", "FAIL"),
        ("striped tokens_per_s >= 262144", "PASS"),
    ],
)
def test_a_claim_holds_of_every_measurement_or_fails(text: str, verdict: str) -> None:
    assert judged(text, *BOTH).verdict == verdict


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("striped >= 1.8 x ring", "PASS"),
        ("striped >= 2 x ring", "INCONCLUSIVE"),
        ("striped >= 2.3 x ring", "FAIL"),
        ("striped time < 1.2 s", "PASS"),
        ("striped time < 1 s", "INCONCLUSIVE"),
        ("striped time < 0.9 s", "FAIL"),
        ("time < 1 s", "FAIL"),
        ("striped tokens_per_s > 262144", "INCONCLUSIVE"),
        ("striped tokens_per_s > 200k", "PASS"),
        ("striped speedup > 2", "INCONCLUSIVE"),
    ],
)
def test_an_interval_that_holds_the_bound_is_unsure(text: str, verdict: str) -> None:
    found = judged(text, sampled(CONTIGUOUS, SLOW), sampled(STRIPED, FAST))
    assert found.verdict == verdict
    assert all(each.verdict != "INCONCLUSIVE" or "interval contains" in each.reason for each in found.findings)


def test_two_samples_are_never_sure() -> None:
    found = judged("striped >= 1.1 x ring", sampled(CONTIGUOUS, SLOW[:2]), sampled(STRIPED, FAST[:2]))
    assert found.verdict == "INCONCLUSIVE" and "fewer than 3 samples" in found.findings[0].reason
    assert judged("striped time < 5 s", sampled(STRIPED, FAST[:2])).verdict == "INCONCLUSIVE"


@pytest.mark.parametrize("field", ["status", "reason"])
def test_a_plan_without_a_time_fails_what_is_claimed_of_it(field: str) -> None:
    lost = m(STRIPED, None, reason=because("it does not fit"))
    if field == "status":
        lost = replace(lost, status="failed")
    for text in ("striped >= 1.3 x ring", "ring <= 9 x striped", "striped time < 9 s", "striped fits"):
        found = judged(text, m(CONTIGUOUS, 1.8), lost)
        assert (found.verdict, found.findings[0].reason) == ("FAIL", "it does not fit"), text
    assert judged("time < 9 s", m(CONTIGUOUS, 1.8), lost).verdict == ("FAIL" if field == "status" else "PASS")


def test_of_several_tiles_and_meshes_the_fastest_counts() -> None:
    others = [m(CONTIGUOUS.replace("512x512", tile), seconds) for tile, seconds in (("256x256", 1.2), ("128x128", 3.0))]
    refused = m(STRIPED.replace("512x512", "2048x2048"), None, reason=because("too large"))
    found = judged("striped >= 1.2 x ring", *BOTH, *others, refused)
    assert found.verdict == "PASS" and len(found.findings) == 1
    assert found.findings[0].plan.endswith("ring/contiguous/xla@ring=8,tile=256x256")


def test_sides_agree_in_what_neither_names() -> None:
    zigzag = m("ring/zigzag/xla@ring=8,tile=512x512", 0.9)
    found = judged("ulysses >= 1.7 x ring", *BOTH, zigzag, m(ULYSSES, 1.0))
    assert found.verdict == "PASS", "the contiguous ring, for ulysses is contiguous"
    assert judged("ulysses >= ring/zigzag", *BOTH, zigzag, m(ULYSSES, 1.0)).verdict == "FAIL"
    splash = m(STRIPED.replace("xla", "splash"), 0.5)
    assert judged("splash >= 2 x xla", *BOTH, splash).findings[0].plan.startswith(f"{splash.plan} over {STRIPED}")


@pytest.mark.parametrize(
    "other",
    [
        {"target": "v5e:4x4"},
        {"method": "compiled"},
        {"workload": replace(WORK, passes="forward-backward")},
        {"flags": {"flag": "on"}},
    ],
    ids=["target", "method", "workload", "flags"],
)
def test_only_what_is_alike_is_compared(other: dict[str, Any]) -> None:
    found = judged("striped >= 1.3 x ring", m(STRIPED), m(CONTIGUOUS, 9.0, **other))
    assert found.verdict == "FAIL" and "in workload, target, method, flags, kernel" in found.reason


def test_runs_are_not_compared_with_each_other() -> None:
    runs = [("a", run_of(m(STRIPED, 1.0))), ("b", run_of(m(CONTIGUOUS, 2.0)))]
    (found,) = judge_claims([parse_claim("striped >= 1.3 x ring")], runs)
    assert found.verdict == "FAIL"
    (found,) = judge_claims([parse_claim("time < 1.5 s")], runs)
    assert [(each.verdict, each.where.endswith(", b")) for each in found.findings] == [
        ("FAIL", True),
        ("PASS", False),
    ]


def test_the_baseline_counts_where_it_is_named() -> None:
    alone = m(ONE, 8.0, target="v5e:1")
    assert judged("striped >= 1.3 x ring", *BOTH, alone).holding == 1
    assert judged("striped >= 8 x ring@ring=1", *BOTH, alone).verdict == "PASS"
    assert judged("striped >= 8 x ring@ring=1 on v5e:2x4", *BOTH, alone).verdict == "PASS"
    assert judged("time < 2 s", *BOTH, alone).verdict == "PASS"
    assert judged("time < 9 s", alone).holding == 1, "where there is nothing else"
    vanilla = m("vanilla/contiguous/dense", 9.0, target="v5e:1")
    assert judged("vanilla time < 9 s", *BOTH, vanilla).verdict == "FAIL"


@pytest.mark.parametrize("text", ["ring >= ring", "ring > 1.1 x xla", "ring@tile=512 >= 1.1 x ring", "striped >= xla"])
def test_a_plan_on_both_sides_is_ambiguous(text: str) -> None:
    with pytest.raises(BadInput, match=r"claim 0: the claim is ambiguous: ring/.* matches both sides"):
        judged(text, *BOTH)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("ulysses time < 1 s", "nothing matches ulysses; the run has ring/contiguous"),
        ("striped >= 1.3 x ring at 512k", "nothing matches ring/striped at 512k; the run has 256k"),
        ("time < 1 s on v5e:2x2", "nothing matches on v5e:2x2; the run has v5e:2x4"),
        ("time < 1 s on this machine", "nothing matches on this machine; the run has simulated for v5e:2x4"),
        ("time < 1 s in step", "nothing matches in step; the run has forward"),
        ("time < 1 s by measured of 7b", "nothing matches by measured; the run has simulated"),
        ("time < 1 s of 7b", "nothing matches of 7b; the run has 1b"),
        ("overlap >= 0.9", "none of the 2 matching measurements has overlap. It needs a profile"),
    ],
)
def test_a_claim_about_nothing_says_what_there_is(text: str, says: str) -> None:
    found = judged(text, *BOTH)
    assert (found.verdict, found.findings) == ("FAIL", [])
    assert found.reason.startswith(says)


def test_this_machine_is_where_tiles_were_timed() -> None:
    here = m(STRIPED, 1.0, cost_source={"source": "measured_tile"}, target="cpu:8")
    ran = sampled(STRIPED, FAST, target="cpu:2")
    paper = m(STRIPED, 99.0, cost_source={"source": "datasheet"})
    assert judged("time < 2 s on this machine", here, ran, paper).holding == 2


def test_a_target_has_several_names() -> None:
    slice_of_16 = m(STRIPED, target="v4:2x2x4")
    for name in ("v4:2x2x4", "v4-32", "v4"):
        assert judged(f"time < 2 s on {name}", slice_of_16).verdict == "PASS"


def test_figures_that_are_no_times() -> None:
    full = m(
        STRIPED,
        method="compiled",
        peak_bytes=20 * 2**30,
        hbm_bytes=16 * 2**30,
        bytes={"collective-permute": 2**30, "all-to-all": 2**30},
        overlap={"ratio": 0.95},
        check={"max_rel_error": float("nan"), "tolerance": 0.01, "reference": "dense"},
        tiles={"computed": 10, "useful": 9, "efficiency": 0.9},
    )
    verdicts = {
        text: judged(text, full).verdict for text in ("peak < 21 GiB", "sent <= 2 GiB", "overlap > 90%", "fits")
    }
    assert verdicts == {"peak < 21 GiB": "PASS", "sent <= 2 GiB": "PASS", "overlap > 90%": "PASS", "fits": "FAIL"}
    assert judged("max_rel_error < 1e300", full).verdict == "FAIL", "no number is no small error"
    assert judged("fits", m(STRIPED)).reason.endswith("Try --target v5e:4x4.")


WORDS = [
    *METRICS,
    "striped",
    "ring",
    "ring/striped@ring=8",
    "xla",
    ">=",
    "<",
    "1.3",
    "x",
    "30 GiB",
    "90%",
    "at",
    "256k",
]
WORDS += [
    "on",
    "this machine",
    "v5e:2x4",
    "in",
    "forward",
    "by",
    "measured",
    "of",
    "1b",
    "speed-up",
    "1e999",
    "²",
    "@",
    "/",
]


@settings(max_examples=300)
@given(st.text(max_size=40) | st.lists(st.sampled_from(WORDS), max_size=9).map(" ".join))
@example("1" * 5000 + " < time")
@example("time < " + "1" * 5000 + " s")
@example("e" * 3000 + " x" * 3000 + " >= " + "1.1" * 3000 + " x ring")
@example("time < 0" + "e" * 20_000)
@example("tiles >= " + "0." * 20_000)
def test_a_line_is_a_claim_or_bad_input(text: str) -> None:
    try:
        (found,) = judge_claims([parse_claim(text)], [("run", run_of(*BOTH))])
    except BadInput as error:
        assert str(error)
    else:
        assert found.verdict in VERDICTS and (found.findings or found.reason)


def test_a_time_that_a_stronger_method_refuses_does_not_count() -> None:
    tensor = "ring/striped/xla@ring=2,tensor=4,tile=512x512"
    refused = m(tensor, None, method="compiled", reason=because("it does not fit"))
    found = judged("striped >= 1.3 x ring", *BOTH, m(tensor, 0.1), refused)
    assert [each.value for each in found.findings] == [1.8]
    alone = judged("striped >= 1.3 x ring", BOTH[0], m(tensor, 0.1), refused)
    assert (alone.verdict, alone.findings[0].reason) == ("FAIL", "it does not fit")


def test_what_a_search_tried_first_does_not_count() -> None:
    rough = m(STRIPED.replace("512x512", "128x128"), 0.1, cost_source={"source": "short_run"})
    assert judged("striped >= 2 x ring", *BOTH, rough).verdict == "FAIL"
    assert judged("time > 0.5 s", *BOTH, rough).verdict == "PASS"


def test_a_run_with_a_plan_that_cannot_be_read_is_named() -> None:
    with pytest.raises(BadInput, match=r"^run has a plan that cannot be read: unknown scheme 'spiral'"):
        judged("time < 1 s", m("spiral/striped/xla@ring=8"))
