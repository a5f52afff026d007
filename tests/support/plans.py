"""Whole plans for machines that have no table of tiles, so that tests do not depend on the tables."""

from dataclasses import replace
from pathlib import Path

from stripectl.core.layout import Tile
from stripectl.core.plan import DEFAULT_KERNELS, Plan, parse_plan
from stripectl.core.reason import Reason
from stripectl.core.scheme import schemes
from stripectl.core.validation import why_unsupported
from stripectl.core.workload import Workload
from stripectl.costs import default_tiles, defaults
from stripectl.hardware.profile import Hardware

BARE = {kind: Hardware.from_mapping(Path(kind), {"kind": kind}) for kind in ("cpu", "gpu", "tpu")}


def with_tile(plan: Plan, workload: Workload, kind: str = "cpu") -> Plan:
    """The plan with its kernels and tiles named, on hardware of this kind; its mesh stays as it is."""
    return default_tiles.with_tile(defaults.with_names(plan, workload, BARE[kind]), workload, BARE[kind])


def tiles_for(plan: Plan, workload: Workload, kind: str) -> list[Tile]:
    """The tiles to try on hardware of this kind."""
    return default_tiles.tiles_for(plan, workload, BARE[kind])


def why_refused(plan: Plan, workload: Workload, kind: str, devices: int | None = None) -> Reason | None:
    """Why the plan cannot compute the workload on hardware of this kind, with default layout and kernels where it
    names none."""
    return why_unsupported(defaults.with_names(plan, workload, BARE[kind]), workload, kind, devices)


def reference_plan(text: str) -> Plan:
    """The plan of a text, with its scheme's layout and the reference kernel of its family where it names none."""
    found = parse_plan(text)
    scheme = schemes[found.scheme]
    kernel = found.kernel or DEFAULT_KERNELS[scheme.kernel_families[0]]
    return replace(found, layout=found.layout or scheme.default_layout, kernel=kernel)


def mask_of(scheme: str, window: int = 37) -> str:
    """A causal mask, with a window for a scheme that needs one."""
    return f"sliding:{window}" if schemes[scheme].sends_halos else "causal"
