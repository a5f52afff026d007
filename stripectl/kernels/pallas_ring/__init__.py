"""pallas_ring: pallas_tpu with a ring's hops inside its kernels, sent by remote DMA while tiles are computed.

Data is sent from its own memory straight into a buffer of the next device, and the compiler schedules no hop. A rolled
loop still copies its carry; with unroll=2 it copies nothing.
"""

from dataclasses import replace
from typing import Any

from stripectl.core.plan import Plan
from stripectl.core.reason import Reason
from stripectl.core.workload import Workload
from stripectl.kernels import pallas_tpu


def why_unsupported(workload: Workload, plan: Plan, kind: str, *_: Any) -> Reason | None:
    if plan.scheme != "ring":
        return Reason.unsupported(
            f"pallas_ring sends the hops of scheme ring, not of {plan.scheme}", "Try --kernel pallas_tpu."
        )
    return pallas_tpu.why_unsupported("pallas_ring", workload, plan, kind)


about = replace(
    pallas_tpu.about,
    name="pallas_ring",
    why_unsupported=why_unsupported,
    makes_hops=True,
    costs=replace(
        pallas_tpu.about.costs,
        tile_costs_of={"forward": "pallas_tpu", "backward": "pallas_tpu"},
    ),
)
