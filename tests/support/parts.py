"""Measurements with parts as JSON has them, so that a test names no record."""

from dataclasses import replace

from stripectl.results.measurement import Measurement


def with_parts(m: Measurement, **parts: object) -> Measurement:
    """The measurement with these fields; mappings and lists are read as a file's are."""
    content = {name: value for name, value in parts.items() if isinstance(value, dict | list)}
    m = replace(m, **{name: value for name, value in parts.items() if name not in content})
    return Measurement.from_json({**m.to_json(), **content}) if content else m
