"""What a terminal shows: a run as a table, progress, numbers with their units."""

import sys
import time
from collections.abc import Sequence
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from stripectl.measurement import Measurement, Run, verdict, with_speedups
from stripectl.plan import parse_plan
from stripectl.workload import Workload, format_length

NOTHING = "n/a"
WIDE = 4000  # columns of a table that is not for a screen: nothing is cut
PLAIN_EVERY_S = 10.0


def console(*, stderr: bool = False) -> Console:
    """A console as wide as what it writes to; what is piped is never wrapped or cut."""
    stream = sys.stderr if stderr else sys.stdout
    return Console(stderr=stderr, width=None if stream.isatty() else WIDE, highlight=False, soft_wrap=False)


def duration(seconds: float | None) -> str:
    """Three digits and a unit."""
    if seconds is None:
        return NOTHING
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}" if seconds / size < 1000 else f"{seconds / size:,.0f} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def nbytes(count: float | None) -> str:
    if count is None:
        return NOTHING
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:.3g} {unit}" if count < 1000 else f"{count:.0f} {unit}"
        count /= 1024
    return NOTHING


def rate(per_s: float | None, unit: str) -> str:
    if per_s is None:
        return NOTHING
    for prefix, size in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3), ("", 1.0)):
        if per_s >= size:
            return f"{per_s / size:.3g} {prefix}{unit}"
    return f"{per_s:.3g} {unit}"


def times(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.2f}x"


def speedup(m: Measurement) -> str:
    """Value, interval and, where the interval holds 1, the word for it."""
    if not m.speedup:
        return NOTHING if m.status != "ok" or not m.median_s else "base"
    text = times(m.speedup["value"])
    if m.speedup.get("ci95"):
        low, high = m.speedup["ci95"]
        text += f" [{low:.2f}, {high:.2f}]"
        if verdict(m.speedup) == "ambiguous":
            text += " ambiguous"
    return text


def spread(m: Measurement) -> str:
    if not m.ci95_s or not m.median_s:
        return duration(m.median_s)
    return f"{duration(m.median_s)} ±{50 * (m.ci95_s[1] - m.ci95_s[0]) / m.median_s:.1f}%"


def describe(workload: Workload) -> str:
    """A workload in a line."""
    shared = "" if workload.kv_heads == workload.heads else f" ({workload.kv_heads} kv)"
    model = f"model {workload.model}, " if workload.model else ""
    batch = f", batch {workload.batch}" if workload.batch > 1 else ""
    return (
        f"{model}{format_length(workload.seq_len)} tokens, {workload.heads} heads{shared} of {workload.head_dim}, "
        f"{workload.dtype}, {workload.mask}{batch}"
    )


def simulation_error(m: Measurement, run: Sequence[Measurement]) -> float | None:
    """How far the simulation of what was measured is off, or None where there is no such pair."""
    if m.method != "measured" or not m.median_s:
        return None
    twin = next((o for o in run if (o.workload, o.plan, o.target, o.method) == (*_what(m), "simulated")), None)
    return twin.median_s / m.median_s - 1 if twin and twin.median_s else None


def _what(m: Measurement) -> tuple[Workload, str, str]:
    return m.workload, m.plan, m.target


def table(run: Run) -> list[Table | Text]:
    """A table for every workload (both passes in one), in the order of the run."""
    shown: list[Table | Text] = []
    groups: dict[tuple[str, str], list[Measurement]] = {}
    measurements = with_speedups(run.measurements)
    for m in measurements:
        groups.setdefault((describe(m.workload), ""), []).append(m)
    for (title, _), members in groups.items():
        pairs = any(simulation_error(m, measurements) is not None for m in members)
        made = Table(
            title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, header_style="dim"
        )
        columns = ["plan", "pass", "target", "method", "time", "speed-up", "bound", "tiles", "sent", "per device"]
        columns += ["simulation"] * pairs
        for name in columns:
            made.add_column(
                name,
                justify="left" if name in ("plan", "pass", "target", "method", "speed-up") else "right",
                no_wrap=True,
            )
        for m in members:
            made.add_row(*row(m, measurements, pairs))
        shown += [made, *(reason(m) for m in members if m.status != "ok"), Text("")]
    return shown


def row(m: Measurement, run: Sequence[Measurement], pairs: bool) -> list[str]:
    if m.status != "ok":
        return [m.plan, m.workload.passes, m.target, m.status, *[NOTHING] * (5 + 1 + pairs)]
    plan, sent = parse_plan(m.plan), sum((m.bytes or {}).values())
    error = simulation_error(m, run)
    bound = (m.bound or {}).get("attention_only")
    cells = [
        m.plan if plan.devices > 1 else f"{m.plan} (one device)",
        m.workload.passes,
        m.target,
        m.method,
        spread(m),
        speedup(m),
        times(bound) if plan.shards > 1 else NOTHING,
        f"{m.tiles['efficiency']:.0%}" if m.tiles else NOTHING,
        nbytes(sent) if plan.devices > 1 else NOTHING,
        rate(m.flops_per_s_per_device, "FLOP/s"),
    ]
    return cells + [NOTHING if error is None else f"{error:+.0%}"] * pairs


def reason(m: Measurement) -> Text:
    return Text(
        f"  {m.status}: {m.plan} {m.workload.passes}: {m.reason}", style="yellow" if m.status == "refused" else "red"
    )


class Reporter:
    """Progress on stderr: a bar on a terminal, a line now and then elsewhere, nothing when quiet."""

    def __init__(self, quiet: bool) -> None:
        self.quiet = quiet
        self.screen = console(stderr=True)
        self.bar: Progress | None = None
        self.spoken = (0.0, "")

    def __enter__(self) -> "Reporter":
        if not self.quiet and self.screen.is_terminal:
            columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(bar_width=24), TimeElapsedColumn())
            self.bar = Progress(
                *columns, TextColumn("left"), TimeRemainingColumn(), console=self.screen, transient=True
            )
            self.bar.start()
            self.task = self.bar.add_task("start", total=1)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.bar:
            self.bar.stop()

    def say(self, now: str, done: int, total: int) -> None:
        """What runs now, how many steps are done, how many there are."""
        if self.bar:
            self.bar.update(self.task, description=now, completed=done, total=total)
        elif not self.quiet and time.monotonic() - self.spoken[0] > PLAIN_EVERY_S:
            self.screen.print(f"{now} ({done} of {total})", markup=False)
            self.spoken = (time.monotonic(), now)
