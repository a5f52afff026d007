"""A suite: several runs of one command in a YAML file, each a mapping of the command's options.

    about: its purpose
    given: {pass: step, layout: [contiguous, striped]}
    runs:
      - {target: "v4:2x2x4", model: 1b, seqlen: [64k, 256k], mesh: ["ring=8,tensor=2", "ring=4,tensor=4"]}

`given` applies to every run; without `runs` it is the only run, and so are options at the top level. Options on the
command line override both. A list is a comma-separated value, or a repeated option where the option may be repeated.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from stripectl.errors import BadInput
from stripectl.runner.options import RequestOptions
from stripectl.util.files import load_yaml, unknown_name
from stripectl.util.json import is_list, is_mapping

MAX_RUNS = 1000
SUITE_KEYS = ("about", "given", "runs")
# Options that a run in a suite cannot set.
COMMAND_KEYS = ("output", "history", "as_json", "all_plans", "wide", "quiet", "resume", "dry_run", "profile")


def suite_runs(path: Path) -> list[RequestOptions]:
    """The options of every run in a suite for the current command.

    Raises:
        BadInput: not a suite, or an option or value that the command does not have; the message names the run.
    """
    content, context = load_yaml(path, "suite"), click.get_current_context()
    alone = {key: value for key, value in content.items() if key not in SUITE_KEYS}
    given, listed = content.get("given") or dict[str, Any](), content.get("runs", [dict[str, Any]()])
    if not is_mapping(given) or not is_list(listed) or not all(map(is_mapping, listed)):
        raise BadInput(
            f"{path} is not a suite. Write `given:` as a mapping of options, and `runs:` as a list of mappings."
        )
    if len(listed) > MAX_RUNS:
        raise BadInput(f"the suite {path} has {len(listed):,} runs, more than {MAX_RUNS:,}. Try several files.")
    if not any({**alone, **given, **run} for run in listed):
        raise BadInput(f"the suite {path} has no run. Write options, or `runs:` as a list of mappings of options.")
    said = {
        name: value
        for name, value in context.params.items()
        if context.get_parameter_source(name) not in (ParameterSource.DEFAULT, None)
    }
    found = list[RequestOptions]()
    for number, run in enumerate(listed, 1):
        where = f"run {number} of the suite {path}"
        words = list(_words({**alone, **given, **run}, context.command, where))
        try:
            params = context.command.make_context(context.info_name, words).params
        except click.ClickException as error:
            raise BadInput(f"{where}: {error.format_message()}") from error
        found.append(RequestOptions.of({**params, **said}))
    return found


def _words(options: Mapping[Any, Any], command: click.Command, where: str) -> Iterator[str]:
    """A mapping of options as words of a command line."""
    known = {
        name.lstrip("-"): each
        for each in command.params
        if isinstance(each, click.Option)
        for name in (*each.opts, *each.secondary_opts)
        if each.name not in COMMAND_KEYS
    }
    for name, value in options.items():
        if name not in known:
            raise unknown_name(f"option in {where}:", str(name), known)
        option = known[name]
        if option.is_flag:
            off = option.secondary_opts if f"--{name}" in option.opts else option.opts
            yield from [f"--{name}"] if value else off[:1]
            continue
        texts = list(map(str, value)) if is_list(value) else [str(value)]
        for text in texts if option.multiple else [",".join(texts)]:
            yield f"--{name}"
            yield text
