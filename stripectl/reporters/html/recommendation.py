"""The recommendation as cards of the page."""

from typing import TypedDict

from stripectl.results.labels import workload_label
from stripectl.results.recommendation import Recommendation, Statement


class RecommendationCard(TypedDict):
    """The recommendation for a workload on the page."""

    group: str
    passes: str
    headline: str
    answer: str
    plan: str
    target: str
    statements: tuple[Statement, ...]
    time: Statement | None
    reasons: tuple[str, ...]


def recommendation_cards(found: Recommendation | None) -> list[RecommendationCard]:
    """One card for every workload with a time, the main workload of the run first."""
    return [recommendation_card(each) for each in found.every] if found else []


def recommendation_card(found: Recommendation) -> RecommendationCard:
    """One of them: its statements as they are."""
    return {
        "group": workload_label(found.workload),
        "passes": found.workload.passes,
        "headline": found.headline,
        "answer": found.answer,
        "plan": found.printed_plan,
        "target": str(found.target),
        "statements": found.statements,
        "time": found.statement("time"),
        "reasons": found.reasons,
    }
