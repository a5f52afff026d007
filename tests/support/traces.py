"""Traces as a profile holds them."""

from typing import Any

from stripectl.profiling.timeline import KINDS

FIGURES = {"step_s": 2.0, "compute_s": 1.0, "hidden_s": 0.5, "exposed_s": 0.5, "skew_s": 0.25, "idle_s": 0.0}
DEVICES = [{"name": "TPU:0", **FIGURES, "ratio": 0.5}, {"name": "TPU:1", **FIGURES, "compute_s": 1.5, "ratio": 0.25}]


def hop(at: int, exposed_s: list[float], **given: Any) -> dict[str, Any]:
    figures = {"window_s": [1.0, 1.0], "hidden_s": [0.75, 0.5], "exposed_s": exposed_s, "skew_s": [0.0, 0.125]}
    told = {"opcode": "collective-permute", "pass": "forward", "axis": "ring", "sent_bytes": 2**20, "transfer_s": 0.5}
    return {"hop": at, **told, **figures, **given}


TRACE: dict[str, Any] = {
    "module": "jit_step",
    "steps": 3,
    "devices": DEVICES,
    "hops": [
        hop(1, [0.25, 0.5], cause="link", why="it moves 1 MiB in 500 ms", advice="a longer block", bytes_per_s=2e6),
        hop(2, [0.75, 0.5], cause="link", why="it moves 1 MiB in 750 ms", advice="a longer block"),
        hop(3, [0.0, 0.0]),
    ],
    "axes": [{"axis": "ring", "hidden_s": 0.5, "exposed_s": 0.5, "sent_bytes": 2**20}],
    "operations": [{"name": "fusion.1", "category": "fusion", "count": 6, "self_s": 1.0, "share": 0.5}],
    "timeline": {"end_s": 2.0, "devices": [[["compute", 0.0, 1.0], ["hidden", 1.0, 2.0]], [["exposed", 0.0, 0.5]]]},
}


def large(devices: int, hops: int, parts: int) -> dict[str, Any]:
    """As much as a profile may hold: every part of a step of another kind than its neighbour."""
    width = 1.0 / parts
    row = [[KINDS[at % len(KINDS)], at * width, (at + 1) * width] for at in range(parts)]
    figures = {name: [0.001 * (at % 7 + 1) for at in range(devices)] for name in ("window_s", "hidden_s", "exposed_s")}
    told = {"skew_s": [0.0005] * devices, "cause": "link", "why": "it is slow", "advice": "a longer block"}
    return TRACE | {
        "devices": [TRACE["devices"][0] | {"name": f"TPU:{at}"} for at in range(devices)],
        "hops": [hop(at, []) | figures | told for at in range(hops)],
        "timeline": {"end_s": 1.0, "devices": [row] * devices},
    }
