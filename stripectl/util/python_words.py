"""Errors for Python users: they name arguments of functions, where the errors of commands name options."""

import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager

from stripectl.errors import StripectlError

# An option and its value, or a command with its options, which stays. Words of the sentence that follow an option
# without a value are not its value.
OPTION = re.compile(
    r"stripectl [a-z-]+(?: --[a-z-]+)*|"
    r"--([a-z]+(?:-[a-z]+)*)(?: (?!(?:a|and|for|in|is|or|the|with|without)\b)([A-Za-z0-9'][^\s;]*[^\s;.,]|\w))?"
)


def in_python(text: str, phrases: Mapping[str, str]) -> str:
    """A message with arguments in place of options: `--kv-heads 8` becomes `kv_heads=8`. `phrases` are what to write
    for options with other names here, with `{}` for the value."""

    def argument(found: re.Match[str]) -> str:
        if found[1] is None:
            return found[0]
        name, value = found[1].replace("-", "_"), found[2]
        phrase = phrases.get(name, name)
        if value is None:
            return " ".join(phrase.partition("=")[0].replace("{}", "").split())
        if "{}" in phrase:
            return phrase.format(value)
        return f"{phrase}={value}" if value.isdigit() else f"{phrase}={value!r}"

    return OPTION.sub(argument, text)


@contextmanager
def python_words(phrases: Mapping[str, str]) -> Generator[None, None, None]:
    """Errors from inside name arguments (`in_python`)."""
    try:
        yield
    except StripectlError as error:
        error.args = (in_python(str(error), phrases),)
        raise
