"""Help with headings: the options that most people need first, then each group of options, then the command's own."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import click

FIRST = ("seqlen", "model", "target", "plan", "pass_")  # by their names in Python
FIRST_HEADING, OTHERS = "Most used options", "Other options"


class OptionGroup(NamedTuple):
    """Options that commands share, and the heading above them in the help."""

    heading: str
    options: Sequence[Callable[..., Any]]

    def add_to(self, command: Callable[..., Any]) -> Callable[..., Any]:
        """Add the options to a command, before its present options."""
        for option in reversed(self.options):
            command = option(command)
            command.__click_params__[-1].heading = self.heading  # type: ignore[attr-defined]
        return command


class CommandWithHeadings(click.Command):
    """A command whose help lists options under headings."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        listed = [param for param in self.get_params(ctx) if isinstance(param, click.Option)]
        first = sorted(
            (param for param in listed if param.name in FIRST), key=lambda each: FIRST.index(each.name or "")
        )
        sections = dict[str, list[tuple[str, str]]]()
        for param in [*first, *(param for param in listed if param not in first)]:
            if record := param.get_help_record(ctx):
                heading = FIRST_HEADING if param in first else getattr(param, "heading", OTHERS)
                sections.setdefault(heading, []).append(record)
        sections[OTHERS] = sections.pop(OTHERS)  # to the end: --help is among them
        for heading, records in sections.items():
            with formatter.section(heading):
                formatter.write_dl(records)


def options(*groups: OptionGroup) -> Callable[..., Any]:
    """A decorator that adds groups of options, in the given order."""

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        for group in reversed(groups):
            command = group.add_to(command)
        return command

    return add
