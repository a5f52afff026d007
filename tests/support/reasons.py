"""Reasons of plans that tests make."""

from stripectl.core.reason import Reason, ReasonKind


def because(fact: str) -> Reason:
    """The reason of a plan without a time, of no kind that decides anything."""
    return Reason(ReasonKind.ERROR, fact)
