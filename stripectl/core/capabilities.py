"""The capabilities of each scheme, found by asking it about small workloads that differ in one property each."""

import contextlib
import itertools
from dataclasses import replace
from typing import Any

from stripectl.core.defaults import with_mesh
from stripectl.core.kernel import kernels
from stripectl.core.layout import layouts
from stripectl.core.method import METHODS
from stripectl.core.model import MODEL_SIZES
from stripectl.core.plan import DEFAULT_KERNELS, Plan
from stripectl.core.scheme import Scheme
from stripectl.core.validation import why_unsupported
from stripectl.core.workload import PASSES, STEP, Workload
from stripectl.errors import BadInput

DEVICES = 8
SIMULATED_DEVICES = " from a datasheet"  # added where no tile exists that could be timed
MASKS: dict[str, dict[str, Any]] = {
    **{"causal": {"mask": "causal"}, "full": {"mask": "full"}, "sliding": {"mask": "sliding:1k"}},
    "documents": {"documents": (1024,)},
}


def capabilities(scheme: Scheme) -> dict[str, list[str]]:
    """The scheme's axes, layouts, kernels, masks, passes and methods, under these names."""
    mask = "sliding:1k" if scheme.sends_halos else "causal"
    work = Workload(seq_len=2**14, heads=16, kv_heads=16, head_dim=64, batch=DEVICES, mask=mask)
    plan = with_mesh(Plan(scheme.name, scheme.default_layout, DEFAULT_KERNELS[scheme.kernel_families[0]]), DEVICES)

    def able(own: Plan = plan, **change: Any) -> bool:
        """Whether the scheme supports the change on any kind of hardware, with the kernel's attention, and with as many
        queries as keys or with one query."""
        for queries, kind in itertools.product((None, 1), ("cpu", "gpu", "tpu")):
            with contextlib.suppress(BadInput):
                asked = replace(work, query_len=queries, attention=kernels[own.kernel].attention, **change)
                if why_unsupported(own, asked, kind) is None:
                    return True
        return False

    return {
        "axes": list(scheme.axes) or ["one device"],
        "layouts": [name for name in layouts.load()[0] if able(replace(plan, layout=name))],
        "kernels": [name for name in kernels.load()[0] if able(replace(plan, kernel=name))],
        "masks": [name for name, change in MASKS.items() if able(**change)],
        "passes": [each for each in PASSES if able(plan, passes=each, **model_sizes(each))],
        "methods": [
            f"{name}{SIMULATED_DEVICES * (name == 'simulated' and kernels[plan.kernel].keeps_all_scores)}"
            for name in METHODS
        ],
    }


def model_sizes(passes: str) -> dict[str, int]:
    """The sizes of a small model; only a step needs them."""
    return dict.fromkeys(MODEL_SIZES, 1024) if passes == STEP else {}
