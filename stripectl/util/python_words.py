"""Errors for Python users: they name arguments of functions, where the errors of commands name options."""

import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from keyword import iskeyword

from stripectl.errors import StripectlError

# An option and its value, or a command with its options, which stays. Words of the sentence that follow an option
# without a value are not its value.
OPTION = re.compile(
    r"stripectl [a-z-]+(?: --[a-z-]+)*|"
    r"--([a-z]+(?:-[a-z]+)*)"
    r"(?: (?!(?:a|and|contradicts|for|in|is|or|the|with|without)\b)([A-Za-z0-9'][^\s;]*[^\s;.,]|\w))?"
)


def in_python(text: str, phrases: Mapping[str, str]) -> str:
    """A message with arguments in place of options: `--kv-heads 8` becomes `kv_heads=8`. `phrases` are what to write
    for options that are not arguments here, with `{}` or `{!r}` for the value."""

    def argument(found: re.Match[str]) -> str:
        if found[1] is None:
            return found[0]
        name, value = found[1].replace("-", "_"), found[2]
        phrase = phrases.get(name, name + "_" * iskeyword(name) + "={!r}")
        if value is None:
            return re.sub(r"=?'?{(!r)?}'?", "", phrase).strip()
        return phrase.format(int(value) if value.isdecimal() else value.strip("'"))

    return OPTION.sub(argument, text)


@contextmanager
def python_words(phrases: Mapping[str, str]) -> Generator[None, None, None]:
    """Errors from inside name arguments (`in_python`)."""
    try:
        yield
    except StripectlError as error:
        error.args = (in_python(str(error), phrases),)
        raise
