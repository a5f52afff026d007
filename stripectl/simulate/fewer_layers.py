"""The measured step of a deep model: steps with fewer layers run in its place, because each further layer adds the same
time."""

import math
from collections.abc import Sequence
from dataclasses import replace

from stripectl.core.linear_attention import pattern_of
from stripectl.core.reason import Reason, ReasonKind
from stripectl.core.workload import STEP, Workload
from stripectl.results.case import Case
from stripectl.results.cost_source import CostOrigin, CostSource, FewLayers
from stripectl.results.measurement import Measurement
from stripectl.statistics.intervals import median_interval
from stripectl.util.units import plural

LAYERS_RUN = (1, 3)  # layers of the steps that run in place of a whole model's step


def layers_run(workload: Workload) -> list[int]:
    """The numbers of layers that run in place of a whole model: LAYERS_RUN, times the length of a pattern."""
    of_masks = sum(run.layers for run in workload.layer_masks) or 1
    pattern = math.lcm(len(pattern_of(workload.attention)), of_masks)
    return [times * pattern for times in LAYERS_RUN]


def with_fewer_layers(case: Case) -> list[Case]:
    """Replace a training step with more layers than `layers_run` by cases with fewer: the same with fewer layers."""
    run = layers_run(case.workload)
    if not case.is_ready or case.workload.passes != STEP or (case.workload.layers or 0) <= max(run):
        return [case]
    return [replace(case, workload=replace(case.workload, layers=layers)) for layers in run]


def from_fewer_layers(case: Case, made: Sequence[Measurement]) -> Measurement:
    """The whole model's step from the results of `with_fewer_layers`: each further layer adds the time of a layer in
    them. Samples were taken in alternation, so the i-th samples together give one sample of the whole, unless more
    layers took no longer: then the machine was disturbed."""
    if bad := next((each for each in made if each.status != "ok"), None):
        return replace(bad, workload=case.workload)
    if len(made) == 1:
        return made[0]
    less, more, layers, run = *made, case.workload.layers or 0, layers_run(case.workload)

    def whole(fewest: float, most: float) -> float:
        return fewest + (layers - run[0]) * (most - fewest) / (run[1] - run[0])

    pairs = [*zip(less.samples_s, more.samples_s, strict=False)]
    sound = [(fewest, most) for fewest, most in pairs if most > fewest]
    if len(sound) <= len(pairs) / 2:
        return too_noisy(case)
    samples_s = [whole(*pair) for pair in sound]
    median_s, interval = median_interval(samples_s)
    layer_s, _ = median_interval([(most - fewest) / (run[1] - run[0]) for fewest, most in sound])
    in_layers_s = min(layers * layer_s, median_s)  # noise can make the layers alone seem longer than the step
    return replace(
        more,
        workload=case.workload,
        samples_s=tuple(samples_s),
        median_s=median_s,
        ci95_s=interval,
        bytes={name: round(whole((less.bytes or {}).get(name, 0), sent)) for name, sent in (more.bytes or {}).items()},
        peak_bytes=None,
        profile=None,  # a profile shows only the layers that ran
        step_parts={"layers": in_layers_s, "the rest": median_s - in_layers_s},
        cost_source=CostSource(
            source=CostOrigin.FEW_LAYERS,
            few_layers=FewLayers(
                layers_run=tuple(run),
                layers=layers,
                layer_s=layer_s,
                samples_by_layers={str(m.workload.layers): m.samples_s for m in made},
            ),
        ),
    )


def too_noisy(case: Case) -> Measurement:
    """A step whose time cannot be computed from steps with fewer layers."""
    less, more = (plural(layers, "layer") for layers in layers_run(case.workload))
    fact = f"a step of {more} took no longer than one of {less}: too noisy"
    reason = Reason(ReasonKind.NOISE, fact, "Try a longer --seqlen.")
    return replace(Measurement.of(case, "measured"), status="failed", reason=reason)
