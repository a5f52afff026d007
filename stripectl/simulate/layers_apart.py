"""Measured attention of a model whose layers have different masks: the layers of each kind run apart, and the time is
the mean over the model's layers."""

import math
from collections.abc import Sequence
from dataclasses import replace

from stripectl.core.layer_groups import mean_bytes, mean_of_layers
from stripectl.core.workload import STEP
from stripectl.results.case import Case
from stripectl.results.measurement import Measurement
from stripectl.statistics.intervals import median_interval


def with_layers_apart(case: Case) -> list[Case]:
    """Replace attention whose layers have different masks by a case for each kind of layers."""
    if not case.is_ready or case.workload.passes == STEP or len(case.layers) == 1:
        return [case]
    return [replace(case, workload=own, plan=plan, facts=None) for _, own, plan in case.layers]


def from_layers_apart(case: Case, made: Sequence[Measurement]) -> Measurement:
    """The attention of the mean layer from the results of `with_layers_apart`. Samples were taken in alternation, so
    the i-th samples together give one sample of the mean."""
    if bad := next((each for each in made if each.status != "ok"), None):
        return replace(bad, workload=case.workload, plan=case.plan)
    if len(made) == 1:
        return made[0]
    groups, checks = case.layers, [each.check for each in made if each.check]
    samples_s = [mean_of_layers(groups, each) for each in zip(*(each.samples_s for each in made), strict=False)]
    median_s, interval = median_interval(samples_s) if samples_s else (None, None)
    return replace(
        Measurement.of(case, "measured"),
        reason=next((each.reason for each in made if each.reason), None),
        samples_s=tuple(samples_s),
        median_s=median_s,
        ci95_s=interval,
        compile_s=math.fsum(each.compile_s or 0.0 for each in made),
        bytes=mean_bytes(groups, [each.bytes or {} for each in made]),
        peak_bytes=max((each.peak_bytes for each in made if each.peak_bytes is not None), default=None),
        check=max(checks, key=lambda check: check.error, default=None),
        noise=made[0].noise,
    )
