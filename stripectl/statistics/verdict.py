"""Verdicts: on a change between two runs, and on a claim."""

from enum import StrEnum


class Verdict(StrEnum):
    """The verdict on a measurement of a run against the same measurement of an earlier run."""

    IMPROVED = "IMPROVED"
    REGRESSED = "REGRESSED"
    UNCHANGED = "UNCHANGED"
    INCONCLUSIVE = "INCONCLUSIVE"
    FAILED = "FAILED"
    MISSING = "MISSING"

    @property
    def is_failure(self) -> bool:
        """Whether a gate must stop."""
        return self in (self.REGRESSED, self.FAILED, self.MISSING)

    @classmethod
    def of_interval(cls, low: float, high: float, reference: float) -> "Verdict":
        """The verdict on a ratio whose interval is known, where a larger ratio is better than the reference."""
        return cls.IMPROVED if low > reference else cls.REGRESSED if high < reference else cls.INCONCLUSIVE


class ClaimVerdict(StrEnum):
    """The verdict on a claim about measurements."""

    PASS = "PASS"
    FAIL = "FAIL"
    INCONCLUSIVE = "INCONCLUSIVE"
