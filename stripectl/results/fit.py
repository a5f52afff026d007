"""Whether a plan fits in the memory of a device."""

from dataclasses import replace

from stripectl.results.measurement import Measurement

TRY_SMALLER = "Try more devices, a shorter sequence or a smaller batch."


def check_memory(m: Measurement) -> Measurement:
    """The measurement; refused where it needs more memory than a device has."""
    if not m.peak_bytes or not m.hbm_bytes or m.peak_bytes <= m.hbm_bytes:
        return m
    over = (m.peak_bytes - m.hbm_bytes) / 2**30
    needs = "is predicted to need" if m.method == "simulated" else "needs"
    has = f"the {m.hbm_bytes / 2**30:.2f} GiB of a device"
    reason = f"does not fit: it {needs} {over:.2f} GiB more than {has}. {TRY_SMALLER}"
    return replace(m, status="refused", reason=reason)
