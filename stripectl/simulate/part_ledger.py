"""Bytes in use on a device, by part, and the contents of its memory at the peak."""

from collections import defaultdict
from typing import Any

import numpy as np


class PartLedger:
    """Bytes in use by part, and the contents at the peak, of one plan or by plan."""

    def __init__(self) -> None:
        self.in_use = defaultdict[str, float](float)
        self.total = self._most = 0.0
        self._contents = dict[str, float]()
        self._besides = list[tuple[dict[str, float], str, Any]]()

    def take(self, part: str, nbytes: float) -> None:
        self.in_use[part] += nbytes
        self.total += nbytes
        if self.total > self._most:
            self._most, self._contents = self.total, dict(self.in_use)

    def give_back(self, part: str, nbytes: float) -> None:
        self.in_use[part] -= nbytes
        self.total -= nbytes

    def hold(self, part: str, nbytes: float) -> "PartAllocation":
        """Memory of an array."""
        return PartAllocation(self, part, nbytes)

    def beside(self, part: str, nbytes: Any) -> None:
        """Add bytes, of one plan or by plan, only during the operation that needs them."""
        self._besides.append((dict(self.in_use), part, nbytes))

    def peak(self, at: int = 0) -> dict[str, int]:
        """The bytes by part at the peak of plan number `at`."""
        found = [self._contents]
        for contents, part, nbytes in self._besides:
            own = float(nbytes) if np.ndim(nbytes) == 0 else float(np.ravel(nbytes)[at])
            found.append(contents | {part: contents.get(part, 0.0) + own})
        return {part: round(nbytes) for part, nbytes in max(found, key=lambda each: sum(each.values())).items()}


class PartAllocation:
    """Memory of an array, from its creation until its last reference is gone."""

    __slots__ = ("ledger", "nbytes", "part")

    def __init__(self, ledger: PartLedger, part: str, nbytes: float) -> None:
        self.ledger, self.part, self.nbytes = ledger, part, nbytes
        ledger.take(part, nbytes)

    def __del__(self) -> None:
        self.ledger.give_back(self.part, self.nbytes)
