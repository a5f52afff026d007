"""What frameworks are asked for: every plan that stripectl computes, and the flags of a snippet."""

import itertools
import re
from collections.abc import Iterator

from stripectl.core.defaults import with_mesh
from stripectl.core.layout import layouts
from stripectl.core.plan import DEFAULT_KERNELS, Plan
from stripectl.core.scheme import schemes
from stripectl.core.validation import why_unsupported
from stripectl.core.workload import Workload
from stripectl.hardware.target import parse_target
from stripectl.results.measurement import Measurement
from tests.support.factories import measurement_of
from tests.support.plans import with_tile

TARGETS = ("v5p:2x2x4", "2*v5p:2x2x2", "h100:8", "2*h100:8")
MASKS = {
    "softmax": {},
    "sliding": {"mask": "sliding:4k"},
    "packed": {"documents": (4096, 1024)},
    "linear": {"attention": "linear"},
}


def workload(kind: str = "softmax", **changes) -> Workload:
    known = {"seq_len": 2**16, "heads": 32, "kv_heads": 16, "head_dim": 128, "passes": "forward-backward"}
    return Workload(**{**known, **MASKS[kind], **changes})


def table() -> Iterator[Measurement]:
    """Every scheme on every layout, target kind and mask that stripectl itself can compute there."""
    machines = {target: parse_target(target) for target in TARGETS}
    for name, layout, target, kind in itertools.product(schemes.names(), layouts.names(), TARGETS, MASKS):
        family = "linear" if kind == "linear" else schemes[name].kernel_families[0]
        if family not in schemes[name].kernel_families:
            continue
        device = machines[target].hardware.kind
        kernel = "pallas_tpu" if device == "tpu" and family == "softmax" else DEFAULT_KERNELS[family]
        plan, work = with_mesh(Plan(name, layout, kernel), machines[target].devices), workload(kind)
        if why_unsupported(plan, work, device) is None:
            yield measurement_of(with_tile(plan, work, device), 1.0, work, target)


TABLE = list(table())


def flags(given: str, dashes: str = "") -> dict[str, str]:
    words = (line.removesuffix("\\").strip().removeprefix(dashes) for line in given.splitlines())
    return dict(
        re.split(r"[= ]", word, maxsplit=1) for word in words if re.search(r"[= ]\S", word) and "-m" not in word
    )
