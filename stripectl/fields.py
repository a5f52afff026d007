"""Whole plans, run where their devices are, for a search to ask of: short runs first, then whole ones."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from stripectl.candidates import work_of
from stripectl.launch import DeviceSet, PlanFailed
from stripectl.measurement import Measurement
from stripectl.plan import BATCH_AXES, HEAD_AXES, parse_plan
from stripectl.sampling import Effort, Sampled, Say, prepare, prepare_again, why


class MeasuredPlans:
    """Plans that run here. A short run is of one key/value group a device: cost is linear in heads and batch. Where the
    workload is no more than that, it is the run that warms up."""

    def __init__(self, devices: DeviceSet, cases: Sequence[Measurement], effort: Effort, say: Say) -> None:
        self.devices, self.effort, self.say = devices, effort, say
        self.cases = [Sampled(replace(case, method="measured"), f"whole {i}", []) for i, case in enumerate(cases)]
        self.prior_s = [work_of(case) for case in cases]
        self.short_s: dict[int, float] = {}
        self.kept: dict[int, list[float]] = {}  # samples of a run that is resumed, to be taken before any are made
        self.spent_s, self.ready = 0.0, set[int]()

    def short(self, index: int) -> float | None:
        case = self.cases[index]
        cut, times = cut_to_a_group(case.measurement)
        if index not in self.short_s:
            self.say(f"short run of {case.measurement.plan}", index, len(self.cases))
            if times == 1:
                self._make_ready(index)
                self.short_s[index] = case.warm_s
            else:
                self._short(index, cut, times)
        if not case.open:
            return None
        self.spent_s += self.short_s[index] / times * (1 if times == 1 else 2)
        return self.short_s[index]

    def _short(self, index: int, cut: Measurement, times: float) -> None:
        case, brief = self.cases[index], Sampled(cut, f"short {index}", [])
        prepare(self.devices, brief, self.effort)
        try:
            if brief.open:
                self.short_s[index] = times * max(self.devices.ask("sample", 60 + 20 * brief.warm_s, key=brief.key))
        except PlanFailed as failure:
            brief.fail(*why(failure))
        case.measurement, case.open = (
            replace(
                case.measurement,
                status=brief.measurement.status,
                reason=brief.measurement.reason,
                check=brief.measurement.check,
            ),
            brief.open,
        )

    def whole(self, index: int) -> float | None:
        case = self.cases[index]
        first = not case.samples_s
        if self.kept.get(index):
            seconds = self.kept[index].pop(0)
        else:
            self.say(f"sample {len(case.samples_s) + 1} of {case.measurement.plan}", 0, 1)
            self._make_ready(index)
            if not case.open:
                return None
            try:
                seconds = max(self.devices.ask("sample", 60 + 20 * case.warm_s, key=case.key))
            except PlanFailed as failure:
                case.fail(str(failure))
                return None
        case.samples_s.append(seconds)
        warmed_s = (case.warm_s or seconds) if first and cut_to_a_group(case.measurement)[1] > 1 else 0.0
        self.spent_s += seconds + warmed_s
        return seconds

    def _make_ready(self, index: int) -> None:
        if not self.devices.workers:
            self.ready.clear()  # they were lost, and their programs with them
        if index not in self.ready:
            case = self.cases[index]
            prepare(self.devices, case, self.effort, verify=case.measurement.check is None)
            prepare_again(self.devices, [self.cases[i] for i in sorted(self.ready)], self.effort)
            self.ready.add(index)

    def resume(self, done: Mapping[tuple[str, ...], Measurement]) -> None:
        """Take what was found before in place of running it again."""
        for index, case in enumerate(self.cases):
            known = done.get(case.measurement.what)
            short_s = ((known and known.calibration) or {}).get("short_s")
            if known and known.status == "ok" and short_s:
                self.short_s[index], self.kept[index] = short_s, list(known.samples_s)
                case.measurement = replace(known, method="measured")

    def row(self, index: int) -> Measurement:
        """What is known of a candidate: measured, or simulated from its short run."""
        case, least = self.cases[index], min(self.prior_s)
        if case.samples_s or not case.open:
            short = {"source": "short_run", "short_s": self.short_s.get(index)}
            return replace(case.finish(), calibration=short if case.open else None)
        if index not in self.short_s:
            reason = f"not run: its tiles compute {self.prior_s[index] / least:.1f} times the scores of another's."
            return replace(case.measurement, status="refused", reason=reason)
        cut, times = cut_to_a_group(case.measurement)
        short = {"source": "short_run", "short_s": self.short_s[index], "heads": cut.workload.heads, "times": times}
        return replace(case.measurement, method="simulated", median_s=self.short_s[index], calibration=short)


def cut_to_a_group(case: Measurement) -> tuple[Measurement, float]:
    """(the case with one key/value group and one sequence a device, how many times as much the whole is)."""
    plan, work = parse_plan(case.plan), case.workload
    tensor, batch = plan.product(HEAD_AXES), plan.product(BATCH_AXES)
    short = replace(work, heads=tensor * (work.heads // work.kv_heads), kv_heads=tensor, batch=batch, model=None)
    return replace(case, workload=short), work.kv_heads / tensor * (work.batch / batch)
