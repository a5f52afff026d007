"""The help of commands with many options lists them under headings."""

import re

import pytest

from stripectl.util.plug_in_errors import is_debugging
from tests.support.command import stripectl

WORKLOAD = (
    "query-len heads kv-heads key-heads head-dim v-head-dim batch dtype mask attention recurrence decay feature-map "
    "documents layers"
)
EFFORT = "method xla-flag compile-timeout cache time-budget min-samples warmup"
HOSTS = "coordinator num-processes process-id cluster"
OUTPUT = "output history json all-plans wide quiet verbose"
PLANS = "scheme layout kernel tile unroll mesh"
HELP = {
    "bench": {
        "Most used options": "seqlen model target plan pass",
        "Workload": WORKLOAD,
        "Plans": PLANS,
        "Machine": "hardware",
        "Method and effort": EFFORT,
        "Several hosts": HOSTS,
        "Output": OUTPUT,
        "Other options": "refine profile resume dry-run help",
    },
    "tune-tiles": {
        "Most used options": "seqlen model target plan pass",
        "Workload": WORKLOAD,
        "Plans": PLANS,
        "Machine": "hardware",
        "Method and effort": EFFORT,
        "Several hosts": HOSTS,
        "Output": OUTPUT,
        "Other options": "strategy refine resume dry-run help",
    },
    "trace": {
        "Most used options": "seqlen model target pass",
        "Workload": WORKLOAD,
        "Machine": "hardware",
        "Compiler": "xla-flag",
        "Several hosts": HOSTS,
        "Output": OUTPUT,
        "Other options": "steps warmup resume read mesh help",
    },
}


@pytest.mark.parametrize("command", HELP)
def test_options_stand_under_headings(command: str) -> None:
    shown = stripectl(command, "--help").stdout
    sections = re.findall(r"^(\S[^\n]*):\n((?:  .*\n|\n)+)", shown, re.MULTILINE)
    listed = {
        heading: " ".join(re.findall(r"^  (?:-\w, )?--([\w-]+)", text, re.MULTILINE)) for heading, text in sections
    }
    assert {heading: names for heading, names in listed.items() if names} == HELP[command]


def test_verbose_lasts_as_long_as_its_command() -> None:
    assert stripectl("bench", "--target", "v5p:2x2x1", "--seqlen", "8k", "--verbose", "--dry-run").returncode == 0
    assert not is_debugging()
