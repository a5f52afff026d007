"""How the parts of a model that stripectl does not compute distort the figures of a workload."""

from dataclasses import replace
from functools import lru_cache

from stripectl.core.replacement import OMITTED, Replacement
from stripectl.core.workload import STEP, Workload
from stripectl.errors import BadInput
from stripectl.models.model_files import load_model
from stripectl.results.findings import Distortion


def replaced_parts(workload: Workload) -> tuple[Distortion, ...]:
    """The distortions by the model of a workload; for attention alone, by layers with a mask of their own."""
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
    if part.mask:
        return mask_distortion(part, workload)
    if workload.passes != STEP:
        return None
    instead = "omitted" if part.instead in ("", OMITTED) else f"computed as {part.instead}"
    return Distortion(fact=f"{part.part}, {instead}", figures=part.distorts)


def mask_distortion(part: Replacement, workload: Workload) -> Distortion:
    """The distortion by layers with a mask of their own, which are computed with the mask of the workload."""
    pairs = workload.pairs
    own = replace(workload, mask=part.mask).pairs if workload.documents is None else pairs
    others = replace(workload, mask="causal").pairs if workload.documents is None else pairs
    real = (part.layers * own + (part.of_layers - part.layers) * others) / part.of_layers
    fact = f"{part.layers} of {part.of_layers} layers have the mask {part.mask}, but all are timed as {workload.mask}"
    return Distortion(fact=fact, figures=part.distorts, factor=pairs / real)
