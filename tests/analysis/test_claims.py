"""Claims: what a line may say, and what a file of them may hold."""

import re
from pathlib import Path

import pytest

from stripectl.analysis.claims import MAX_CLAIMS, load_claims, parse_claim
from stripectl.errors import BadInput


@pytest.mark.parametrize(
    ("text", "plans", "op", "bound", "others", "clauses"),
    [
        ("striped >= 1.3 x ring", "ring/striped", ">=", 1.3, "ring/contiguous", []),
        ("ring>=0.5x striped", "ring/contiguous", ">=", 0.5, "ring/striped", []),
        ("zigzag ≥ 1.0 × striped", "zigzag", ">=", 1.0, "striped", []),
        ("ulysses > ring by compiled", "ulysses", ">", 1.0, "ring", ["by compiled"]),
        ("ring/striped at 256k < 2 * ring", "ring/striped", "<", 2.0, "ring/contiguous", ["at 256k"]),
        ("striped >= 6 x ring@ring=1", "ring/striped", ">=", 6.0, "ring/contiguous@ring=1", []),
        ("overlap >= 90%", None, ">=", 0.9, None, []),
        ("peak < 30 GiB on this machine", None, "<", 30 * 2**30, None, ["on this machine"]),
        ("zigzag peak at 16k..64k on v4-32 <= 30GB", "zigzag", "<=", 30e9, None, ["at 16k..64k", "on v4-32"]),
        ("ring@ring=8 time < 250 ms in forward of 1b", "ring@ring=8", "<", 0.25, None, ["in forward", "of 1b"]),
        ("tflops_per_s_per_device > 100", None, ">", 1e14, None, []),
        ("tokens_per_s > 400k", None, ">", 4e5, None, []),
        ("MFU>40%", None, ">", 0.4, None, []),
        ("striped speed-up >= 1.3x", "striped", ">=", 1.3, None, []),
        ("max_rel_error < 1e-2", None, "<", 0.01, None, []),
        ("tiles efficiency >= 0.8", None, ">=", 0.8, None, []),
        ("zigzag fits at 1M on v4:2x2x4", "zigzag", ">=", 1.0, None, ["at 1M", "on v4:2x2x4"]),
        ("fits", None, ">=", 1.0, None, []),
    ],
)
def test_what_a_line_says(text, plans, op, bound, others, clauses) -> None:
    found = parse_claim(text)
    said = [each and each.text for each in (found.plans, found.others)]
    assert (*said, found.op) == (plans, others, op)
    assert found.bound == pytest.approx(bound)
    assert [each.text for each in found.clauses] == clauses


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "the claim has no comparison"),
        ("striped", "the claim has no comparison"),
        ("speedup = 1.3", "by one of >= <= > <"),
        ("1 < speedup < 2", "the claim has no comparison"),
        ("striped >=", "the claim has no comparison"),
        ("stripd >= ring", "Did you mean striped"),
        ("overlpa >= 0.9", "Did you mean overlap"),
        ("ring/strped overlap >= 0.9", "Did you mean striped"),
        ("ring@rnig=8 overlap >= 0.9", "Did you mean ring"),
        ("peak < 30", "'30' is not a value of peak. Write a number and its unit: GiB"),
        ("time < 3 GiB", "is not a value of time"),
        ("time < 1e400 s", "too large"),
        ("time < 1e308 min", "too large"),
        ("time < -1 s", "is not a value of time"),
        ("time < nan s", "is not a value of time"),
        ("fits >= 1", "takes no value"),
        ("striped overlap >= ring", "expected plans on each side"),
        ("overlap >= 0.9 at 512q", "not a length"),
        ("overlap >= 0.9 at", "'at' has no value"),
        ("overlap >= 0.9 at 1k at 2k", "at occurs twice"),
        ("overlap >= 0.9 in foward", "Did you mean forward"),
        ("overlap >= 0.9 by mesured", "Did you mean measured"),
    ],
)
def test_what_is_no_claim_says_what_it_could_have_been(text: str, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        parse_claim(text)


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_clauses_may_be_fields(tmp_path: Path) -> None:
    text = "claims: [{claim: time < 1 s, on: 'v5e:2x4', at: [64k, 256k], in: forward, by: simulated, of: 1b, why: so}]"
    (claim,) = load_claims(written(tmp_path / "claims.yaml", text)).claims
    assert [each.text for each in claim.clauses] == [
        "at 64k,256k",
        "on v5e:2x4",
        "in forward",
        "by simulated",
        "of 1b",
    ]
    assert claim.text == "time < 1 s at 64k,256k on v5e:2x4 in forward by simulated of 1b"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[]", "not a mapping"),
        ("claims:", "no list of 1 to"),
        ("claims: []", "no list of 1 to"),
        (f"claims: [{'a,' * (MAX_CLAIMS + 1)}]", "no list of 1 to"),
        ("claim: [a]", "Did you mean claims"),
        ("about: {a: b}\nclaims: [fits]", "about is not a string"),
        ("claims: [fits, fits at 1q]", "claim 2: '1q' is not a length"),
        ("claims: [null]", "claim 1: the claim has no comparison"),
        ("claims: [[a, [b]]]", "claim 1: claim is not a string"),
        ("claims: [{claim: fits, att: 1k}]", "claim 1: unknown field 'att'. Did you mean at"),
        ("claims: [{claim: fits, [1]: 1k}]", "is not YAML"),
        ("claims: [{claim: fits at 1k, at: 1k}]", "claim 1: at occurs twice"),
        ("claims: [{claim: fits, at: }]", "claim 1: 'at' has no value"),
        ("claims: [{claim: fits, at: {}}]", "claim 1: at is not a string"),
        ("claims: [{claim: fits, name: true}]", "claim 1: name is not a string"),
        ('claims: ["fits\\u200b"]', "claim 1: claim is longer .* or has a character that cannot be printed"),
        ('claims: ["fits \\e[31m"]', "claim 1: the claim has no comparison"),
        (f"claims: [{'f' * 301}]", "longer than 300"),
        ("claims: [2026-99-99]", "is not YAML"),
        ("claims: &b [a, *b]", "or for themselves"),
    ],
)
def test_a_bad_file_says_which_claim_and_why(text: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=re.compile(says)):
        load_claims(written(tmp_path / "claims.yaml", text))
