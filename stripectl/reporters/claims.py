"""Judged claims as a table, as lines of reasons, as markdown, as cases for a CI system, and as JSON."""

import math
from collections.abc import Iterable, Sequence

from stripectl.analysis.claim_verdicts import VERDICTS, ClaimFinding, Judgement
from stripectl.reporters.ci import JUnitCase
from stripectl.reporters.markdown import collapsed_details, fit_comment, markdown_table, markdown_text, plain_text
from stripectl.statistics.verdict import ClaimVerdict
from stripectl.util.json import JsonObject

SCHEMA = "stripectl.check/1"
COLUMNS = ("#", "verdict", "claim", "found", "holds", "plan")
TEXT_COLUMNS = ("claim", "verdict", "found", "plan")
MAX_SCREEN_REASONS, MAX_FILE_REASONS = 5, 100  # per claim, on a screen and in a file: GitLab reads 30 MB


def is_failing(judged: Judgement, strict: bool) -> bool:
    """Whether a claim makes the command fail."""
    return judged.verdict == ClaimVerdict.FAIL or (strict and judged.verdict == ClaimVerdict.INCONCLUSIVE)


def claim_name(judged: Judgement) -> str:
    """A claim's number and its name, or else its text."""
    return f"{judged.claim.number}. {judged.claim.name or judged.claim.text}"


def claim_row(judged: Judgement) -> dict[str, str]:
    """The cells of a claim, by column: its worst finding, and the number of measurements for which it holds."""
    worst = judged.findings[0] if judged.findings else None
    return {
        "#": str(judged.claim.number),
        "verdict": judged.verdict,
        "claim": ": ".join(filter(None, (judged.claim.name, judged.claim.text))),
        "found": plain_text(worst.said) if worst else "nothing",
        "holds": f"{judged.holding} of {len(judged.findings)}",
        "plan": plain_text(worst.plan) if worst else "",
    }


def finding_line(finding: ClaimFinding) -> str:
    """A finding in one line."""
    reason = f", {finding.reason}" if finding.reason else ""
    return plain_text(f"{finding.said}{reason}: {finding.plan} ({finding.where})")


def claim_reasons(judged: Judgement) -> list[str]:
    """Why a claim does not hold, or is inconclusive, the worst finding first; then the author's explanation."""
    found = first_lines(
        (finding_line(each) for each in judged.findings if each.verdict != ClaimVerdict.PASS), MAX_SCREEN_REASONS
    )
    lines = [plain_text(judged.reason)] if judged.reason else found
    return [*lines, *([f"why: {judged.claim.why}"] if lines and judged.claim.why else [])]


def first_lines(lines: Iterable[str], most: int) -> list[str]:
    """The first lines, and the number of further lines."""
    kept = list(lines)
    return [*kept[:most], *([f"and {len(kept) - most} more"] if len(kept) > most else [])]


def verdict_counts(judged: Sequence[Judgement]) -> str:
    """How many claims hold, fail and are inconclusive."""
    counts = {verdict: sum(each.verdict == verdict for each in judged) for verdict in VERDICTS[::-1]}
    words = {
        ClaimVerdict.PASS: ("passes", "pass"),
        ClaimVerdict.INCONCLUSIVE: ("is inconclusive", "are inconclusive"),
        ClaimVerdict.FAIL: ("fails", "fail"),
    }
    return ", ".join(f"{count} {words[verdict][count != 1]}" for verdict, count in counts.items() if count)


def claims_markdown(about: str, judged: Sequence[Judgement]) -> str:
    """Markdown for a comment on a pull request and for the summary of a job."""
    lines = [f"### stripectl check: {verdict_counts(judged)}", ""]
    if about:
        lines += [markdown_text(about), ""]
    lines += markdown_table(COLUMNS, [list(claim_row(each).values()) for each in judged])
    for each in judged:
        if told_of := claim_reasons(each):
            lines += [
                "",
                *collapsed_details(
                    f"{claim_name(each)}: {each.verdict}", [f"- {markdown_text(line)}" for line in told_of]
                ),
            ]
    return fit_comment(lines, "More in the output of stripectl check.")


def claim_cases(group: str, judged: Sequence[Judgement], strict: bool) -> list[JUnitCase]:
    """One case per claim; an inconclusive claim counts as skipped, except with --strict."""
    return [
        JUnitCase(
            name=claim_name(each),
            group=group,
            verdict=each.verdict,
            outcome="failed"
            if is_failing(each, strict)
            else "skipped"
            if each.verdict == ClaimVerdict.INCONCLUSIVE
            else "passed",
            message=next(iter(claim_reasons(each)), f"{claim_row(each)['found']}, {claim_row(each)['holds']}"),
            detail="\n".join(
                filter(
                    None,
                    [each.claim.text, each.claim.why, *first_lines(map(finding_line, each.findings), MAX_FILE_REASONS)],
                )
            ),
        )
        for each in judged
    ]


def claims_json(about: str, judged: Sequence[Judgement], strict: bool) -> JsonObject:
    """All judged claims, as plain data."""
    return {
        "schema": SCHEMA,
        "about": about,
        "holds": not any(is_failing(each, strict) for each in judged),
        "claims": [_claim(each) for each in judged],
    }


def _claim(judged: Judgement) -> JsonObject:
    claim = judged.claim
    return {
        "number": claim.number,
        "claim": claim.text,
        "name": claim.name or None,
        "why": claim.why or None,
        "verdict": judged.verdict,
        "reason": judged.reason or None,
        "findings": [
            vars(each)
            | {"value": _number(each.value), "interval": each.interval and [_number(end) for end in each.interval]}
            for each in judged.findings
        ],
    }


def _number(value: float | None) -> float | None:
    """JSON has no infinity."""
    return value if value is None or math.isfinite(value) else None
