"""Why a hop is exposed, with figures and advice."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from stripectl.profiling.program import Site
from stripectl.results.profile import DeviceFigures, Diagnosis
from stripectl.util.units import duration, nbytes, rate

SKEW_SHARE = 0.5  # of the exposed time: waiting for slower peers
UNEVEN = 0.05  # of a step: devices that wait longer at its end have too little work
NOTHING_LEFT = 0.05  # of a transfer's time: with less compute before the next hop it has nothing to hide behind
TPU_FLAGS = {
    "collective-permute": "xla_enable_async_collective_permute",
    "all-gather": "xla_enable_async_all_gather",
    "all-reduce": "xla_enable_async_all_reduce",
    "reduce-scatter": "xla_enable_async_reduce_scatter_fusion",
    "all-to-all": "xla_tpu_enable_async_all_to_all",
}
LONGER_BLOCK = "a longer block on each device (a longer sequence, fewer devices on this axis)"


@dataclass(frozen=True, kw_only=True)
class ProfiledPlan:
    """What is known of the program in a profile, which a diagnosis is judged by: the platform, the layout, mask and
    unrolling of its plan, how often the loop of its ring turns, and the published rate of a link, one way."""

    platform: str | None = None
    layout: str | None = None
    mask: str | None = None
    unroll: int | None = None
    turns: int | None = None
    link_bytes_per_s: float | None = None


def cause(
    site: Site, figures: Mapping[str, float], transfer_s: float, sent_bytes: int, told: ProfiledPlan
) -> Diagnosis:
    """Why a hop is exposed, on the device where it is most exposed: skew, link, synchronous, late or short.
    `transfer_s` is the shortest time of the hop on any device."""
    rated = told.link_bytes_per_s
    least_s = sent_bytes / rated if rated and sent_bytes and site.asynchronous else transfer_s
    exposed_s, skew_s, compute_s = (figures[name] for name in ("exposed_s", "skew_s", "round_compute_s"))
    took = transfer_label(sent_bytes, transfer_s, rated)
    beside = f"{duration(compute_s)} of compute follow it in its round"
    if skew_s > SKEW_SHARE * exposed_s:
        why = f"of {duration(exposed_s)} exposed, {duration(skew_s)} are a wait for a slower device; {took}"
        return Diagnosis(cause="skew", why=why, advice=layout_advice(told))
    if compute_s < NOTHING_LEFT * least_s:
        why = f"only {duration(compute_s)} of compute are between its start and the next hop; {took}"
        return Diagnosis(cause="late", why=why, advice=unroll_advice(told) or "start it earlier")
    if least_s > compute_s:
        why = f"{took}, which is longer than the compute at the same time: {beside}"
        return Diagnosis(cause="link", why=why, advice=link_advice(told))
    if not site.asynchronous:
        why = f"the program runs it synchronously; {took}, {beside}"
        return Diagnosis(cause="synchronous", why=why, advice=async_advice(site, told))
    if not site.beside_compute:
        why = f"the schedule has no work between its start and its end; {took}"
        advice = unroll_advice(told) or "start it before the compute that does not need it"
        return Diagnosis(cause="late", why=why, advice=advice)
    why = f"the work between its start and its end is shorter than the transfer: {took}, {beside}"
    return Diagnosis(cause="short", why=why, advice=unroll_advice(told) or LONGER_BLOCK)


def end_cause(devices: Sequence[DeviceFigures], told: ProfiledPlan, unit: str) -> Diagnosis | None:
    """The same for the end of a step or call, where early devices wait for the slowest; None where they hardly wait."""
    ends_s = np.array([(device.by_step or {})["step_s"] for device in devices])
    waits_s = np.median(ends_s.max(axis=0) - ends_s, axis=1)
    idlest, slowest = devices[int(waits_s.argmax())], devices[int(waits_s.argmin())]
    wait_s = float(waits_s.max())
    if wait_s <= UNEVEN * slowest.step_s:
        return None
    why = f"{idlest.name} waits {duration(wait_s)} of a {unit} of {duration(slowest.step_s)} for {slowest.name}"
    return Diagnosis(cause="skew", why=why, advice=layout_advice(told))


def transfer_label(sent_bytes: int, transfer_s: float, rated: float | None) -> str:
    """The bytes of a hop, where they are known (else 0), its time, its rate, and the link's rate."""
    if not sent_bytes:
        return f"it takes {duration(transfer_s)}"
    took = f"it moves {nbytes(sent_bytes)} in {duration(transfer_s)}"
    if not transfer_s:
        return took
    link = f", a link has {rate(rated, 'B/s')}" if rated else ""
    return f"{took} ({rate(sent_bytes / transfer_s, 'B/s')}{link})"


def async_advice(site: Site, told: ProfiledPlan) -> str:
    """Advice that lets the hop run during compute."""
    platform = told.platform
    if platform == "tpu" and site.opcode in TPU_FLAGS:
        return f"--xla-flag {TPU_FLAGS[site.opcode]}=true"
    if platform == "gpu":
        return "--xla-flag xla_gpu_enable_latency_hiding_scheduler=true"
    if platform == "cpu":
        own = unroll_advice(told)
        return f"{own}, with spare threads" if own else "a TPU or GPU: XLA on CPU does not overlap this hop"
    return "let the compiler run it asynchronously"


def layout_advice(told: ProfiledPlan) -> str:
    """Advice that balances the work."""
    if (told.layout, told.mask) == ("contiguous", "causal"):
        return "a layout that balances the causal mask: striped or zigzag"
    return "balance the work of the devices, or find the cause of a slow device: other load, clocks, packing"


def link_advice(told: ProfiledPlan) -> str:
    """Advice that makes the hop shorter than the compute at the same time."""
    if told.layout is None:
        return "send less, compute more between transfers, or place this axis on faster links (stripectl topology)"
    return f"{LONGER_BLOCK}, shared key/value heads, or faster links for this axis (stripectl topology)"


def unroll_advice(told: ProfiledPlan) -> str:
    """Advice to unroll a ring's loop fully, where the plan does not; `turns` is the number of its iterations."""
    turns = told.turns or 0
    return f"unroll={turns} in the plan, so that a round starts earlier" if (told.unroll or turns) < turns else ""
