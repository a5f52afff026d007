"""A file of claims about runs, each a line that a person can read and `stripectl check` judges.

    about: what must stay true
    claims:
      - striped >= 1.3 x ring at 256k on this machine
      - {claim: zigzag peak < 30 GiB, at: 1M, on: "v5e:4x4", name: memory, why: room for the optimizer}

A claim is `[PLANS] METRIC OP VALUE`, or `PLANS OP [NUMBER x] PLANS` (how many times as fast the first are as the
second), or `[PLANS] fits`. PLANS is a `selector`, `metrics` defines METRIC and VALUE, OP is one of >= > <= <.
Clauses may stand anywhere between, once each, in any order, or be fields: `at 256k`, with lengths as for `--seqlen`;
`on v5e:4x4`, a target, a kind of hardware, or `this machine`; `in forward`, a pass; `by compiled`, a method; `of 7b`, a
model.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stripectl.analysis.metrics import ALIASES, METRICS, Metric, is_timed_here, parse_metric
from stripectl.analysis.plan_selector import Selector, parse_selector
from stripectl.core.lengths import format_length, parse_lengths
from stripectl.core.method import METHODS
from stripectl.core.workload import PASSES
from stripectl.errors import BadInput
from stripectl.hardware.target import parse_target, read_target
from stripectl.results.measurement import Measurement
from stripectl.util.files import load_yaml, unknown_name
from stripectl.util.json import is_list, is_mapping

MAX_CLAIMS = 500
MAX_CLAIM_CHARACTERS = 300  # of a claim and its fields
OPS = (">=", "<=", ">", "<")
HERE = ("this machine", "local")
FORMS = "[PLANS] METRIC OP VALUE, PLANS OP [NUMBER x] PLANS, or [PLANS] fits"
OWN = ("claim", "name", "why")
SIGNS = str.maketrans({"≥": ">=", "≤": "<=", "×": "x"})
OPERATOR = re.compile(r"([<>]=?)")
SIDE = re.compile(r"(?:([\d.eE+-]+) ?[x*] )?([A-Za-z_]\S*)")


@dataclass(frozen=True)
class Clause:
    """A condition of a claim: a measurement that `fits`; `shown` is a measurement's own value."""

    text: str
    fits: Callable[[Measurement], bool]
    shown: Callable[[Measurement], str]


@dataclass(frozen=True, kw_only=True)
class Claim:
    """`plans` (None: all) have a figure on this side of the bound; with `others`, a ratio of speeds."""

    text: str
    metric: Metric
    op: str
    bound: float
    plans: Selector | None = None
    others: Selector | None = None
    clauses: Sequence[Clause] = ()
    number: int = 0
    name: str = ""
    why: str = ""


@dataclass(frozen=True)
class Claims:
    """The claims of a file."""

    about: str
    claims: Sequence[Claim]


def claim_lengths(text: str) -> Clause:
    """`at`: sequence lengths."""
    known = set(parse_lengths(text))
    return Clause(f"at {text}", lambda m: m.workload.seq_len in known, lambda m: format_length(m.workload.seq_len))


def claim_target(text: str) -> Clause:
    """`on`: a target, a kind of hardware, or this machine for what was timed here. One device of the hardware matches
    every such target, because plans on several devices are compared with it."""
    said = f"on {text}"
    if text in HERE:
        return Clause(said, is_timed_here, lambda m: f"{m.method} for {m.target}")
    name, kind = _printed(text), read_target(_printed(text)).hardware

    def fits(m: Measurement) -> bool:
        return str(m.target) == name or (m.target.hardware == kind and (":" not in name or m.devices == 1))

    return Clause(said, fits, lambda m: str(m.target))


def _printed(text: str) -> str:
    """A target as measurements print it: `v4-32` is `v4:2x2x4`."""
    try:
        return str(parse_target(text))
    except BadInput:  # the name of hardware alone, or of a profile that is not available here
        return text


def word(kind: str, before: str, known: Iterable[str], of: Callable[[Measurement], str]) -> Callable[[str], Clause]:
    """`in` and `by`: one of the known words."""

    def read(text: str) -> Clause:
        if text not in known:
            raise unknown_name(kind, text, known)
        return Clause(f"{before} {text}", lambda m: of(m) == text, of)

    return read


def claim_model(text: str) -> Clause:
    """`of`: a model."""
    return Clause(f"of {text}", lambda m: m.workload.model == text, lambda m: m.workload.model or "no model")


CLAUSES: dict[str, Callable[[str], Clause]] = {
    "at": claim_lengths,
    "on": claim_target,
    "in": word("pass", "in", PASSES, lambda m: m.workload.passes),
    "by": word("method", "by", METHODS, lambda m: m.method),
    "of": claim_model,
}


def load_claims(path: Path) -> Claims:
    """The claims of a file.

    Raises:
        BadInput: the file is missing, or a claim has no meaning; the message has its number.
    """
    content = load_yaml(path, "claims file")
    for key in content:
        if key not in ("about", "claims"):
            raise unknown_name(f"key in the claims file {path}:", key, ("about", "claims"))
    listed = content.get("claims")
    if not is_list(listed) or not 1 <= len(listed) <= MAX_CLAIMS:
        raise BadInput(
            f"the claims file {path} has no list of 1 to {MAX_CLAIMS} claims. Write claims: and one line per claim."
        )
    return Claims(_line(content.get("about"), "about"), [_claim(number, each) for number, each in enumerate(listed, 1)])


def _claim(number: int, item: Any) -> Claim:
    fields = item if is_mapping(item) else {"claim": item}
    fields = {"on" if key is True else key: value for key, value in fields.items()}  # YAML 1.1 reads `on` as true
    try:
        for key in fields:
            if key not in (*OWN, *CLAUSES):
                raise unknown_name("field", _line(key, "a field"), (*OWN, *CLAUSES))
        claim, name, why = (_line(fields.get(key), key) for key in OWN)
        found = parse_claim(claim, {key: _line(fields[key], key) for key in CLAUSES if key in fields})
    except BadInput as error:
        raise BadInput(f"claim {number}: {error}") from error
    return replace(found, number=number, name=name, why=why)


def _line(value: Any, what: str) -> str:
    """A text of a file, in one printable line."""
    several = value if is_list(value) else [value]
    if any(isinstance(each, bool) or not isinstance(each, str | int | float | None) for each in several):
        raise BadInput(f"{what} is not a string.")
    text = " ".join(",".join(str(each) for each in several if each is not None).split())
    if len(text) > MAX_CLAIM_CHARACTERS or not text.isprintable():
        raise BadInput(
            f"{what} is longer than {MAX_CLAIM_CHARACTERS} characters, or has a character that cannot be printed."
        )
    return text


def parse_claim(text: str, fields: Mapping[str, str] | None = None) -> Claim:
    """A claim from its text; `fields` are its clauses that are fields, by their word.

    Raises:
        BadInput: not a claim; the message says what would be one.
    """
    words, spoken = _clauses(OPERATOR.sub(r" \1 ", text.translate(SIGNS)).split())
    beside = dict(fields or {})
    if twice := spoken.keys() & beside.keys():
        raise BadInput(f"{min(twice)} occurs twice.")
    if empty := [key for key, value in beside.items() if not value]:
        raise BadInput(f"{empty[0]!r} has no value.")
    clauses = [CLAUSES[key](value) for key, value in (spoken | beside).items()]
    whole = " ".join([text, *(f"{key} {value}" for key, value in beside.items())])
    return Claim(text=whole, clauses=clauses, **_core(words))


def _clauses(words: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """(the words of the claim itself, its clauses by their word)."""
    core, spoken, rest = list[str](), dict[str, str](), list(words)
    while rest:
        first = rest.pop(0)
        if first not in CLAUSES:
            core.append(first)
        elif first in spoken or not rest:
            raise BadInput(f"{first} occurs twice." if rest else f"{first!r} has no value.")
        else:
            machine = first == "on" and rest[:2] == HERE[0].split()
            spoken[first] = " ".join(rest[: 1 + machine])
            del rest[: 1 + machine]
    return core, spoken


def _core(words: Sequence[str]) -> dict[str, Any]:
    """The claim without clauses: the figure, or two sides."""
    ops = [each for each in words if each in OPS]
    if not ops and words[-1:] == ["fits"]:
        plans, named = _figure(words)
        return {"plans": plans, "metric": named, "op": ">=", "bound": 1.0}
    at = words.index(ops[0]) if len(ops) == 1 else 0
    left, right = words[:at], " ".join(words[at + 1 :])
    if not left or not right:
        raise BadInput(f"the claim has no comparison by one of {' '.join(OPS)}. Write {FORMS}.")
    if side := SIDE.fullmatch(right):
        if len(left) > 1:
            raise BadInput(f"expected plans on each side, not {' '.join(left)!r} and {side[2]!r}. Write {FORMS}.")
        plans, others, speed = parse_selector(left[0]), parse_selector(side[2]), METRICS["speedup"]
        sides = {"plans": plans.beside(others), "others": others.beside(plans)}
        return {**sides, "metric": speed, "op": ops[0], "bound": speed.bound(side[1] or "1")}
    plans, named = _figure(left)
    if named.is_a_question:
        raise BadInput(f"{named.name} is true or false, and takes no value. Write {FORMS}.")
    return {"plans": plans, "metric": named, "op": ops[0], "bound": named.bound(right)}


def _figure(words: Sequence[str]) -> tuple[Selector | None, Metric]:
    """[PLANS] METRIC."""
    if len(words) == 1 or " ".join(words).lower() in ALIASES:
        return None, parse_metric(words)
    return parse_selector(words[0]), parse_metric(words[1:])
