"""The recommendation as cards of the page."""

from typing import Any

from stripectl.results.labels import workload_label
from stripectl.results.recommendation import Recommendation


def recommendation_cards(found: Recommendation | None) -> list[dict[str, Any]]:
    """One card for every workload with a time, the main workload of the run first."""
    return [recommendation_card(each) for each in found.every] if found else []


def recommendation_card(found: Recommendation) -> dict[str, Any]:
    """One of them: its statements as they are."""
    return {
        "group": workload_label(found.workload),
        "pass": found.workload.passes,
        "headline": found.headline,
        "answer": found.answer,
        "plan": found.printed_plan,
        "target": str(found.target),
        "statements": found.statements,
        "time": found.statement("time"),
        "reasons": found.reasons,
    }
