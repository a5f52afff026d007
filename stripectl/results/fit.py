"""Whether a plan fits in the memory of a device."""

from dataclasses import replace

from stripectl.results.measurement import Measurement

TRY_SMALLER = "Try more devices, a shorter sequence or a smaller batch."


def check_memory(case: Measurement) -> Measurement:
    """The case; refused where it needs more memory than a device has."""
    if not case.peak_bytes or not case.hbm_bytes or case.peak_bytes <= case.hbm_bytes:
        return case
    over = (case.peak_bytes - case.hbm_bytes) / 2**30
    needs = "is predicted to need" if case.method == "simulated" else "needs"
    has = f"the {case.hbm_bytes / 2**30:.2f} GiB of a device"
    reason = f"does not fit: it {needs} {over:.2f} GiB more than {has}. {TRY_SMALLER}"
    return replace(case, status="refused", reason=reason)
