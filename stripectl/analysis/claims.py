"""A file of claims about runs, each a line that a person reads and `stripectl check` judges.

    about: what must stay true
    claims:
      - striped >= 1.3 x ring at 256k on this machine
      - {claim: zigzag peak < 30 GiB, at: 1M, on: "v5e:4x4", name: memory, why: beside the optimizer}

A claim is `[PLANS] METRIC OP VALUE`, `PLANS OP [NUMBER x] PLANS`, how many times as fast the first are as the second,
or `[PLANS] fits`. PLANS is a `selector`, METRIC and VALUE are those of `metrics`, OP is one of >= > <= <. Anywhere
between, once each, in any order, or as fields: `at 256k`, lengths as `--seqlen` takes them; `on v5e:4x4`, a target, a
kind of hardware, or `this machine`; `in forward`, a pass; `by compiled`, a method; `of 7b`, a model.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stripectl.analysis.metrics import ALIASES, METRICS, Metric, parse_metric
from stripectl.analysis.plan_selector import Selector, parse_selector
from stripectl.core.method import METHODS
from stripectl.core.workload import PASSES, format_length, parse_lengths
from stripectl.errors import BadInput
from stripectl.hardware.target import parse_target, read_target
from stripectl.results.measurement import Measurement
from stripectl.util.files import load_yaml, unknown_name

MAX_CLAIMS = 500
MAX_CLAIM_CHARACTERS = 300  # of a claim and its fields
OPS = (">=", "<=", ">", "<")
HERE = ("this machine", "local")
# What a simulation stands on that was timed where the run was made.
FORMS = "[PLANS] METRIC OP VALUE, PLANS OP [NUMBER x] PLANS, or [PLANS] fits"
OWN = ("claim", "name", "why")
SIGNS = str.maketrans({"≥": ">=", "≤": "<=", "×": "x"})
OPERATOR = re.compile(r"([<>]=?)")
SIDE = re.compile(r"(?:([\d.eE+-]+) ?[x*] )?([A-Za-z_]\S*)")


@dataclass(frozen=True)
class Clause:
    """What a claim is about: a measurement that `fits`; `shown` is what one is in that respect."""

    text: str
    fits: Callable[[Measurement], bool]
    shown: Callable[[Measurement], str]


@dataclass(frozen=True, kw_only=True)
class Claim:
    """`plans` (all, where None) have a figure on this side of the bound; compared with `others`, a speed."""

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
    """What a file claims."""

    about: str
    claims: Sequence[Claim]


def claim_lengths(text: str) -> Clause:
    """`at`: sequence lengths."""
    known = set(parse_lengths(text))
    return Clause(f"at {text}", lambda m: m.workload.seq_len in known, lambda m: format_length(m.workload.seq_len))


def claim_target(text: str) -> Clause:
    """`on`: a target, all of a kind of hardware, or what was timed here. One device of the hardware is on every such
    target: it is what plans on several are compared with."""
    said = f"on {text}"
    if text in HERE:
        return Clause(said, is_timed_here, lambda m: f"{m.method} for {m.target}")
    name, kind = _printed(text), read_target(_printed(text)).hardware

    def fits(m: Measurement) -> bool:
        return str(m.target) == name or (m.target.hardware == kind and (":" not in name or m.devices == 1))

    return Clause(said, fits, lambda m: str(m.target))


def _printed(text: str) -> str:
    """A target as measurements have it: `v4-32` is `v4:2x2x4`."""
    try:
        return str(parse_target(text))
    except BadInput:  # the name of hardware alone, or of a profile that is not here
        return text


def is_timed_here(m: Measurement) -> bool:
    """Whether its time stands on what ran where the run was made."""
    return m.method == "measured" or (m.cost_source is not None and m.cost_source.source.is_timed_here)


def word(kind: str, before: str, known: Iterable[str], of: Callable[[Measurement], str]) -> Callable[[str], Clause]:
    """`in` and `by`: one word among those that are known."""

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
        BadInput: no such file, or a claim that says nothing; the message has its number.
    """
    content = load_yaml(path, "claims file")
    for key in content:
        if key not in ("about", "claims"):
            raise unknown_name(f"key in the claims file {path}:", key, ("about", "claims"))
    listed = content.get("claims")
    if not isinstance(listed, list) or not 1 <= len(listed) <= MAX_CLAIMS:
        raise BadInput(
            f"the claims file {path} has no list of 1 to {MAX_CLAIMS} claims. Write claims: and a line each."
        )
    return Claims(_line(content.get("about"), "about"), [_claim(number, each) for number, each in enumerate(listed, 1)])


def _claim(number: int, item: Any) -> Claim:
    fields = item if isinstance(item, dict) else {"claim": item}
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
    """A text of a file, in one line that prints."""
    several = value if isinstance(value, list) else [value]
    if any(isinstance(each, bool) or not isinstance(each, str | int | float | None) for each in several):
        raise BadInput(f"{what} is no text.")
    text = " ".join(",".join(str(each) for each in several if each is not None).split())
    if len(text) > MAX_CLAIM_CHARACTERS or not text.isprintable():
        raise BadInput(f"{what} is longer than {MAX_CLAIM_CHARACTERS} characters, or holds one that does not print.")
    return text


def parse_claim(text: str, fields: Mapping[str, str] | None = None) -> Claim:
    """A claim by its text; `fields` are clauses that stand beside it, by their word.

    Raises:
        BadInput: not a claim, with what it could have been.
    """
    words, spoken = _clauses(OPERATOR.sub(r" \1 ", text.translate(SIGNS)).split())
    beside = dict(fields or {})
    if twice := spoken.keys() & beside.keys():
        raise BadInput(f"{min(twice)} is said twice.")
    if empty := [key for key, value in beside.items() if not value]:
        raise BadInput(f"nothing stands after {empty[0]!r}.")
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
            raise BadInput(f"{first} is said twice." if rest else f"nothing stands after {first!r}.")
        else:
            machine = first == "on" and rest[:2] == HERE[0].split()
            spoken[first] = " ".join(rest[: 1 + machine])
            del rest[: 1 + machine]
    return core, spoken


def _core(words: Sequence[str]) -> dict[str, Any]:
    """What is left without clauses: the figure, or two sides."""
    ops = [each for each in words if each in OPS]
    if not ops and words[-1:] == ["fits"]:
        plans, named = _figure(words)
        return {"plans": plans, "metric": named, "op": ">=", "bound": 1.0}
    at = words.index(ops[0]) if len(ops) == 1 else 0
    left, right = words[:at], " ".join(words[at + 1 :])
    if not left or not right:
        raise BadInput(f"it does not compare two things by one of {' '.join(OPS)}. Write {FORMS}.")
    if side := SIDE.fullmatch(right):
        if len(left) > 1:
            raise BadInput(f"{' '.join(left)!r} and {side[2]!r} are no two sides. Write {FORMS}.")
        plans, others, speed = parse_selector(left[0]), parse_selector(side[2]), METRICS["speedup"]
        sides = {"plans": plans.beside(others), "others": others.beside(plans)}
        return {**sides, "metric": speed, "op": ops[0], "bound": speed.bound(side[1] or "1")}
    plans, named = _figure(left)
    if not named.units:
        raise BadInput(f"{named.name} is true or not, and takes no value. Write {FORMS}.")
    return {"plans": plans, "metric": named, "op": ops[0], "bound": named.bound(right)}


def _figure(words: Sequence[str]) -> tuple[Selector | None, Metric]:
    """[PLANS] METRIC."""
    if len(words) == 1 or " ".join(words).lower() in ALIASES:
        return None, parse_metric(words)
    return parse_selector(words[0]), parse_metric(words[1:])
