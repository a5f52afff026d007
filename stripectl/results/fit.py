"""Whether a plan fits in the memory of a device, and in the share that JAX takes.

A plan that ran fits, and the compiler of a TPU knows all that a program needs. The compiler of a GPU does not know the
memory that the driver, NCCL and cuBLAS take in addition, and a simulation does not know the compiler's temporaries. So
above SURE_SHARE of the memory, their figure does not tell.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Protocol

from stripectl.core.method import Method
from stripectl.core.reason import Reason, ReasonKind
from stripectl.hardware.target import TargetName
from stripectl.results.measurement import Measurement

TRY_SMALLER = "Try more devices, a shorter sequence or a smaller batch."
SURE_SHARE = 0.97  # of a device's memory
JAX_SHARE = 0.75  # of a GPU's memory that JAX takes by default (docs.jax.dev, "GPU memory allocation")
MAX_FRACTION = 0.99  # the driver needs the rest
FRACTION = "XLA_CLIENT_MEM_FRACTION"  # the variable for another share


class Fit(StrEnum):
    """Whether a plan fits in memory."""

    FITS = "it fits"
    TOO_CLOSE = "too close to tell"
    EXCEEDS = "it does not fit"


class UsesMemory(Protocol):
    """A measurement, or a recommendation."""

    @property
    def target(self) -> TargetName: ...
    @property
    def method(self) -> Method: ...
    @property
    def peak_bytes(self) -> int | None: ...
    @property
    def hbm_bytes(self) -> int | None: ...


def memory_fit(found: UsesMemory) -> Fit | None:
    """Whether a plan fits; None where a simulation does not tell."""
    needs, has = found.peak_bytes, found.hbm_bytes
    if not needs or not has:
        return None if found.method == "simulated" else Fit.FITS
    if needs > has:
        return Fit.EXCEEDS
    exact = found.method == "measured" or (found.method == "compiled" and found.target.kind == "tpu")
    return Fit.FITS if exact or needs <= SURE_SHARE * has else Fit.TOO_CLOSE


def check_memory(m: Measurement) -> Measurement:
    """The measurement; refused where it needs more memory than a device has."""
    if memory_fit(m) != Fit.EXCEEDS or not m.peak_bytes or not m.hbm_bytes:
        return m
    over = (m.peak_bytes - m.hbm_bytes) / 2**30
    needs = "is predicted to need" if m.method == "simulated" else "needs"
    has = f"the {m.hbm_bytes / 2**30:.2f} GiB of a device"
    reason = Reason(ReasonKind.MEMORY, f"does not fit: it {needs} {over:.2f} GiB more than {has}", TRY_SMALLER)
    return replace(m, status="refused", reason=reason)


def limit_sentences(plans: Iterable[UsesMemory], one: str = "one plan") -> list[str]:
    """Sentences, without their last stop, about plans that have a time and nearly fill the memory: how many are too
    close to tell, and how many need more than JAX takes by default. `one` is the subject for one plan."""
    known, said = list(plans), list[str]()
    if close := [each for each in known if memory_fit(each) == Fit.TOO_CLOSE]:
        said.append(f"{_need(close, one)} more than {SURE_SHARE:.0%} of a device's memory, which is {Fit.TOO_CLOSE}")
    if large := [each for each in known if jax_share(each) > JAX_SHARE]:
        share = min(MAX_FRACTION, math.floor(100 * max(map(jax_share, large)) + 1) / 100)
        of = f"the {JAX_SHARE:.0%} of a GPU's memory that JAX takes by default"
        said.append(f"{_need(large, one)} more than {of}: set {FRACTION}={share:.2f}")
    return said


def jax_share(found: UsesMemory) -> float:
    """The share of a GPU's memory that JAX must take for a plan that did not run yet; 0 for other plans."""
    if found.method == "measured" or found.target.kind != "gpu" or memory_fit(found) in (None, Fit.EXCEEDS):
        return 0.0
    return found.peak_bytes / found.hbm_bytes if found.peak_bytes and found.hbm_bytes else 0.0


def _need(plans: Sequence[UsesMemory], one: str) -> str:
    return f"{one} needs" if len(plans) == 1 else f"{len(plans)} plans need"
