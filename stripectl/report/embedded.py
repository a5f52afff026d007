"""The run that a page carries: packed, so that a page of hundreds of measurements stays small. `Run.load` reads it."""

import base64
import gzip
import json
from collections.abc import Iterator, Mapping
from typing import Any

MOST_BYTES = 300_000  # packed; of a larger run less is carried, and the page says what is left out


def carried(run: Mapping[str, Any]) -> tuple[str, str]:
    """(the run as the content of a data: link, what is left out of it, in words)."""
    lighter = ((_packed(content), words) for content, words in _lighter(run))
    packed, left_out = next(lighter)
    while len(packed) > MOST_BYTES and (lighter_still := next(lighter, None)):
        packed, left_out = lighter_still
    return base64.b64encode(packed).decode(), left_out


def _packed(run: Mapping[str, Any]) -> bytes:
    return gzip.compress(json.dumps(run, separators=(",", ":")).encode(), mtime=0)


def _lighter(run: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], str]]:
    """The run, and with less and less of it."""
    every = run["measurements"]
    yield run, ""
    if any(m["trace"] for m in every):
        yield (
            {**run, "measurements": [_without_timeline(m) for m in every]},
            ", without the timelines of its profiles",
        )
        every = [{**m, "trace": None} for m in every]
        yield {**run, "measurements": every}, ", without its profiles"
    also = ", without its profiles" if any(m["trace"] for m in run["measurements"]) else ""
    yield {**run, "measurements": [m for m in every if m["status"] == "ok"]}, f"{also}, without what has no time"


def _without_timeline(m: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: part for name, part in (m["trace"] or {}).items() if name != "timeline"}
    return {**m, "trace": kept or None}
