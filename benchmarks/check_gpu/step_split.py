"""A profiled step, divided among its operations: each moment belongs to the operations that run in it, in equal parts
where several run at the same time, and otherwise to the wait before the first operation or to a gap between two. So the
seconds of all operations, of the wait and of the gaps together are the seconds of the step."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from benchmarks.check_gpu.program_work import BESIDE, COPIES, KERNEL, Work
from stripectl.profiling.events import HOST_COPY, Device, Events, Execution
from stripectl.profiling.steps import end_of


class Operation(NamedTuple):
    """An operation of a step: how often it ran, its share of the step, and the kernels that computed it on a GPU."""

    name: str
    work: Work
    times: int
    seconds: float
    kernels: tuple[str, ...] = ()


class StepSplit(NamedTuple):
    """The seconds of a step, of the wait for its first operation, and of the gaps between operations."""

    seconds: float
    wait_s: float
    gaps_s: float
    operations: tuple[Operation, ...]


class Piece(NamedTuple):
    """When an operation ran alone on its line, without the operations inside it."""

    start_s: float
    end_s: float
    which: int


def split_step(device: Device, run: Execution, work: Mapping[str, Work], containers: frozenset[str]) -> StepSplit:
    """Divide a run of a program on a device; `containers` are loops and branches, whose own time is a gap."""
    events = device.operations.between(run.start_s, run.end_s)
    end_s = end_of(device, events, run)
    pieces = [
        piece
        for line in np.unique(events.lines)
        for piece in own_times(events.where(events.lines == line))
        if events.names[piece.which] not in containers
    ]
    seconds, covered_s = shares(pieces)
    counts = np.bincount(events.which, minlength=len(events.names)).tolist()
    kernels: dict[str, set[str]] = defaultdict(set)
    operations: dict[str, tuple[int, float]] = {}
    for which, name in enumerate(events.names):
        if counts[which] and name not in containers:
            count, before_s = operations.get(name, (0, 0.0))
            operations[name] = count + counts[which], before_s + seconds[which]
            kernels[name] |= {device.origins[which].kernel} if device.origins else set()
    wait_s = min((piece.start_s for piece in pieces), default=end_s) - run.start_s
    return StepSplit(
        end_s - run.start_s,
        wait_s,
        end_s - run.start_s - wait_s - covered_s,
        tuple(
            Operation(name, work.get(name) or unknown(name), count, own_s, tuple(sorted(kernels[name] - {name})))
            for name, (count, own_s) in sorted(operations.items(), key=lambda each: -each[1][1])
        ),
    )


def unknown(name: str) -> Work:
    """The work of an event that the program does not name: a copy, or a kernel of a library."""
    copies = name.startswith((*HOST_COPY, "Memcpy"))
    return Work(BESIDE, COPIES if copies else KERNEL, "")


def own_times(events: Events) -> Iterator[Piece]:
    """The pieces of one line's events, by start time: an event that begins in another takes its time from it."""
    inside: list[tuple[float, int]] = []  # (end, which), the innermost last
    now = -np.inf
    rows = zip(events.start_s.tolist(), events.end_s.tolist(), events.which.tolist(), strict=True)
    for start, end, which in (*rows, (np.inf, np.inf, -1)):
        while inside and inside[-1][0] <= start:
            until, at = inside.pop()
            if until > now:
                yield Piece(now, until, at)
                now = until
        if inside and start > now:
            yield Piece(now, start, inside[-1][1])
        now = max(now, start)
        inside.append((end, which))


def shares(pieces: list[Piece]) -> tuple[Mapping[int, float], float]:
    """(seconds of each operation, and of all moments in which any runs): operations at the same moment share it."""
    begins = [(piece.start_s, 1, piece.which) for piece in pieces]
    found, running, covered_s, before_s = defaultdict[int, float](float), Counter[int](), 0.0, 0.0
    for at_s, change, which in sorted([*begins, *((piece.end_s, -1, piece.which) for piece in pieces)]):
        if several := running.total():
            covered_s += at_s - before_s
            for each, count in running.items():
                found[each] += (at_s - before_s) * count / several
        running[which] += change
        running += Counter()  # without those that ended
        before_s = at_s
    return found, covered_s
