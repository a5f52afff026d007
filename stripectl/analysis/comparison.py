"""Two runs, measurement by measurement: which plans became faster or slower, and whether this is significant.

A change compares samples that were taken while the machine was equally fast (`paired_change`). It is significant where
its bootstrap interval excludes zero and a rank test, corrected for the number of comparisons, rejects chance; where it
is larger than the threshold; and where the machine does not explain it: by a different speed throughout, other
programs, a drift within a run, or a throttled clock. Compiled and simulated values are exact: there every change
counts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from stripectl.errors import BadInput
from stripectl.results.environment import differing_parts
from stripectl.results.findings import Noise
from stripectl.results.labels import plan_label
from stripectl.results.measurement import Measurement
from stripectl.results.noise import disturbances
from stripectl.results.run import Run
from stripectl.statistics.paired_change import MIN_SAMPLES, PairedChange, Samples, holm
from stripectl.statistics.verdict import Verdict
from stripectl.util.progress import Say, quiet
from stripectl.util.units import NOTHING, duration

MAX_FALSE_ALARMS = 0.05  # probability of one wrong verdict in a whole comparison where nothing has changed
BUSY_SHARE = 0.5  # share of the cores above which other programs affect every sample
MENTIONED_CHANGE = 0.02  # a larger change of the machine's own speed is reported
# Parts of the environment that must be equal to compare times: a compiler's do not depend on the machine it runs on.
PARTS_THAT_MATTER = {
    "measured": ("versions", "flags", "host", "devices"),
    "compiled": ("versions", "flags"),
    "simulated": (),
}


@dataclass(frozen=True)
class Comparison:
    """The same plan, workload, target and method in two runs. `change` is new time over base time, minus 1, of samples
    where the machine was equally fast; `interval` is its 95 % interval where both were sampled; `why` is the reason of
    a verdict that needs one; and `machine` is how much slower the machine itself was."""

    base: Measurement
    new: Measurement
    verdict: Verdict
    change: float | None = None
    interval: tuple[float, float] | None = None
    why: str = ""
    machine: float = 0.0

    @property
    def change_text(self) -> str:
        """The change, with its interval where both were sampled."""
        if self.change is None:
            return NOTHING
        text = f"{self.change:+.1%}"
        if self.interval and self.base.method == "measured":
            text += f" [{self.interval[0]:+.1%}, {self.interval[1]:+.1%}]"
        return text

    @property
    def time_texts(self) -> tuple[str, str]:
        """The times in the base and in the new run."""
        return duration(self.base.median_s), NOTHING if self.verdict == Verdict.MISSING else duration(self.new.median_s)

    @property
    def sentence(self) -> str:
        """The times, the change and the reason of the verdict."""
        old, fresh = self.time_texts
        return f"{old} to {fresh}, {self.change_text}" + (f": {self.why}" if self.why else "")


def matched_measurements(base: Run, new: Run) -> tuple[list[tuple[Measurement, Measurement]], list[Measurement]]:
    """(the measurements that both runs have, in the order of the new run; the measurements that only the base has).

    Raises:
        BadInput: they have none in common.
    """
    known = {m.key: m for m in base.measurements if m.status == "ok"}
    both = [(known[m.key], m) for m in new.measurements if m.key in known]
    if not both:
        raise BadInput("the runs have no measurement with equal plan, workload, target and method.")
    held = {fresh.key for _, fresh in both}
    return both, [m for key, m in known.items() if key not in held]


def compare_runs(base: Run, new: Run, threshold: float, say: Say = quiet) -> list[Comparison]:
    """Every measurement of the base, compared with the new run. Changes within `threshold` in either direction count as
    equal; a measurement that the new run lacks is missing, and one without a time there has failed. `say` gets the
    current comparison, the number done, and the total.

    Raises:
        BadInput: the runs have no measurement in common.
    """
    both, absent = matched_measurements(base, new)
    sampled = [(old, fresh) for old, fresh in both if old.method == "measured" and is_timed(old, fresh)]
    found = dict[Any, PairedChange]()
    for done, (old, fresh) in enumerate(sampled):
        say(f"compare {fresh.plan}", done, len(sampled))
        found[fresh.key] = PairedChange.between(*compared_samples(old, fresh))
    chances = dict(zip(found, holm([each.chance for each in found.values()]), strict=True))
    made = [
        sampled_verdict(old, fresh, found[fresh.key], chances[fresh.key], threshold)
        if fresh.key in found
        else exact_comparisons(old, fresh, threshold)
        for old, fresh in both
    ]
    return [*made, *(Comparison(m, m, Verdict.MISSING, why="NEW does not contain this measurement") for m in absent)]


def compared_samples(base: Measurement, new: Measurement) -> tuple[Samples, Samples]:
    """The samples of both, with the yardstick's seconds where each sample has its own."""
    watched = all(m.noise and len(m.noise.yardstick_s) == len(m.samples_s) for m in (base, new))
    old, fresh = (
        Samples.of(m.samples_s or (m.median_s or 0.0,), m.noise.yardstick_s if m.noise and watched else ())
        for m in (base, new)
    )
    return old, fresh


def is_timed(base: Measurement, new: Measurement) -> bool:
    return new.status == "ok" and bool(new.median_s and base.median_s)


def check_environments(base: Run, new: Run) -> None:
    """Fail where the environments of two runs differ in a part that matters.

    Raises:
        BadInput: they do, or the runs have no measurement in common.
    """
    if unlike := environment_differences(base, new):
        raise BadInput(
            f"the environments of the runs differ: {'; '.join(unlike)}. Try --allow-different to compare them anyway."
        )


def comparison_notes(compared: Sequence[Comparison]) -> list[str]:
    """A different speed of the machine itself, the reasons of verdicts, and disturbances."""
    said, machine = list[str](), max((each.machine for each in compared), key=abs, default=0.0)
    if abs(machine) > MENTIONED_CHANGE:
        said.append(
            f"The machine was up to {machine:+.1%} slower in NEW (measured by the yardstick, a reference matmul next "
            "to each sample). A change is computed from samples in which it was as fast; the columns show all medians."
        )
    said += [
        f"{each.verdict} {plan_label(each.new)}, {each.new.workload.passes}: {each.why}"
        for each in compared
        if each.why
    ]
    for each in compared:
        for name, m in (("BASE", each.base), ("NEW", each.new)):
            if each.verdict != Verdict.MISSING and (found := disturbances(m)):
                said.append(f"disturbed {name}, {plan_label(m)}, {m.workload.passes}: {'; '.join(found)}")
    return said


def environment_differences(base: Run, new: Run) -> list[str]:
    """Differences between the environments of two runs that matter to their common measurements, in words."""
    methods = {old.method for old, _ in matched_measurements(base, new)[0]}
    return differences_in_parts(
        base,
        new,
        [part for part in PARTS_THAT_MATTER["measured"] if any(part in PARTS_THAT_MATTER[each] for each in methods)],
    )


def differences_in_parts(base: Run, new: Run, parts: Sequence[str]) -> list[str]:
    """Differences between these parts of the environments of two runs, in words."""
    return [
        f"{name} {old} and {fresh}" for name, old, fresh in differing_parts(base.environment, new.environment, parts)
    ]


def exact_comparisons(base: Measurement, new: Measurement, threshold: float) -> Comparison:
    """The comparison where every change counts, or nothing was timed."""
    if not is_timed(base, new):
        return Comparison(base, new, Verdict.FAILED, why=str(new.reason or "NEW has no time for it"))
    change = (new.median_s or 0.0) / (base.median_s or 1.0) - 1
    return Comparison(base, new, exact_verdict(change, threshold), change, (change, change))


def exact_verdict(change: float, threshold: float) -> Verdict:
    """The verdict on an exact change."""
    if abs(change) <= threshold:
        return Verdict.UNCHANGED
    return Verdict.REGRESSED if change > 0 else Verdict.IMPROVED


def sampled_verdict(
    base: Measurement, new: Measurement, found: PairedChange, chance: float, threshold: float
) -> Comparison:
    """The verdict on measured samples, which may be in doubt."""
    why = why_in_doubt(base, new, found, chance, threshold)
    verdict = Verdict.INCONCLUSIVE if why else exact_verdict(found.size, threshold)
    return Comparison(base, new, verdict, found.size, found.interval, why, found.machine)


def why_in_doubt(base: Measurement, new: Measurement, found: PairedChange, chance: float, threshold: float) -> str:
    """Why a measured change, or its absence, is not significant; empty where it is."""
    if found.interval is None:
        return f"fewer than {MIN_SAMPLES} samples"
    verdict, (low, high) = exact_verdict(found.size, threshold), found.interval
    if any(exact_verdict(each, threshold) != verdict for each in found.extremes):
        speed = f"{abs(found.machine):.1%} {'slower' if found.machine > 0 else 'faster'}"
        return f"the machine was {speed} throughout NEW (by the yardstick), which may explain it"
    if verdict == Verdict.UNCHANGED:
        return "" if -threshold <= low and high <= threshold else "the change may exceed the threshold"
    if low <= 0 <= high or chance > MAX_FALSE_ALARMS:
        fewest = min(len(base.samples_s), len(new.samples_s))
        return f"not statistically significant with {fewest} samples. Try a larger --min-samples"
    for name, m, drift in zip(("BASE", "NEW"), (base, new), found.drifts, strict=True):
        if exact_verdict(found.size - drift, threshold) != verdict:
            return f"samples of {name} drift by {drift:+.1%} from the first half to the second"
        if why := why_disturbed(m):
            return f"{why} in {name}"
    return ""


def why_disturbed(m: Measurement) -> str:
    """Another disturbance of all samples of a measurement, or an empty text."""
    noise = m.noise or Noise()
    if noise.throttled:
        return "the clock was throttled"
    return f"other programs took {noise.others:.0%} of the cores" if noise.others > BUSY_SHARE else ""
