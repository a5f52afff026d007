"""The run inside a page, compressed so that a page with hundreds of measurements stays small. `Run.load` reads it.

For a run with many thousands of measurements, the page shows and contains the fastest plans of each workload.
"""

import base64
import gzip
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace

from stripectl.analysis.ranking import fastest_measurements
from stripectl.results.measurement import Measurement
from stripectl.results.run import Run

MAX_SHOWN = 1500  # measurements
MAX_OTHER_RECOMMENDATIONS = 24  # recommendations for other workloads
MAX_ARCHIVE_BYTES = 300_000  # compressed; of a larger run less is contained, and the page says what is omitted


def shown_measurements(measurements: Sequence[Measurement]) -> Sequence[Measurement]:
    """The measurements of a run that a page shows, with their speed-ups; half of the room is for plans without a
    time."""
    if len(measurements) <= MAX_SHOWN:
        return measurements
    workloads = len({(m.workload, m.target) for m in measurements})
    timed = fastest_measurements(measurements, max(1, MAX_SHOWN // 4 // workloads))
    without = [m for m in measurements if m.status != "ok"]
    chosen = {m.key for m in (*timed[: MAX_SHOWN - len(without[: MAX_SHOWN // 2])], *without[: MAX_SHOWN // 2])}
    return [m for m in measurements if m.key in chosen]


def archive_of_run(run: Run) -> tuple[str, str]:
    """As `data_link`, for a run of any size whose measurements have their speed-ups."""
    shown, found = shown_measurements(run.measurements), run.recommendation
    if (less := len(run.measurements) - len(shown)) == 0:
        return data_link(run)
    found = found and replace(found, others=found.others[:MAX_OTHER_RECOMMENDATIONS])
    packed, left_out = data_link(replace(run, measurements=list(shown), recommendation=found))
    return packed, f", without {less:,} of {len(run.measurements):,} measurements{left_out}"


def data_link(run: Run) -> tuple[str, str]:
    """(the run as the content of a data: link, what is omitted from it, in words)."""
    lighter = ((_packed(content), words) for content, words in _lighter(run))
    packed, left_out = next(lighter)
    while len(packed) > MAX_ARCHIVE_BYTES and (lighter_still := next(lighter, None)):
        packed, left_out = lighter_still
    return base64.b64encode(packed).decode(), left_out


def _packed(run: Run) -> bytes:
    return gzip.compress(json.dumps(run.to_json(), separators=(",", ":")).encode(), mtime=0)


def _lighter(run: Run) -> Iterator[tuple[Run, str]]:
    """The run, then the run with less and less content."""
    every, words = run.measurements, ""
    yield run, words
    if any(m.profile for m in every):
        bare = [replace(m, profile=m.profile and replace(m.profile, timeline=None)) for m in every]
        yield replace(run, measurements=bare), ", without the timelines of its profiles"
        every, words = [replace(m, profile=None) for m in every], ", without its profiles"
        yield replace(run, measurements=every), words
    timed = [m for m in every if m.status == "ok"]
    yield replace(run, measurements=timed), f"{words}, without plans that have no time"
