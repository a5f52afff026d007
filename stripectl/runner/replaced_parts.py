"""How the parts of a model that stripectl does not compute distort the figures of a workload."""

from functools import lru_cache

from stripectl.core.replacement import OMITTED, Replacement
from stripectl.core.workload import STEP, Workload
from stripectl.errors import BadInput
from stripectl.models.model_files import load_model
from stripectl.results.findings import Distortion


def replaced_parts(workload: Workload) -> tuple[Distortion, ...]:
    """The distortions by the model of a workload."""
    if workload.model is None:
        return ()
    found = (distortion_of(each, workload) for each in replaced_parts_of(workload.model) if each.distorts)
    return tuple(each for each in found if each)


@lru_cache
def replaced_parts_of(name: str) -> tuple[Replacement, ...]:
    """The replaced parts of a model; none where its file, which an older run names, no longer exists."""
    try:
        return load_model(name).replaced
    except BadInput:
        return ()


def distortion_of(part: Replacement, workload: Workload) -> Distortion | None:
    """The distortion by a part, or None where the workload does not contain the part."""
    if workload.passes != STEP:
        return None
    instead = "omitted" if part.instead in ("", OMITTED) else f"computed as {part.instead}"
    return Distortion(fact=f"{part.part}, {instead}", figures=part.distorts)
