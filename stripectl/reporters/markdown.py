"""Markdown for GitHub: text that is never markup, tables, and collapsed parts."""

import re
from collections.abc import Sequence

from markupsafe import escape

from stripectl.util.files import utf8

MAX_COMMENT_CHARACTERS = 60_000  # of a comment: GitHub takes 65,536
SPECIAL = re.compile(r"([\\`*_\[\]<>|~&$])")
# Plain text that GitHub would turn into a link, a mention or an issue: a space of no width breaks it.
LINKED = re.compile(r"(?i)(?<=:)(?=//)|(?<=www)(?=\.)|(?<![a-z0-9]@)(?<=@)|(?<=#)(?=\d)")
CODE = ("plan",)  # columns set as code, and rows by their first cell


def markdown_text(words: str) -> str:
    """The text as markdown shows it, never as markup: it contains no link, tag, mention or end of a cell."""
    return LINKED.sub("\u200b", SPECIAL.sub(r"\\\1", plain_text(words)))


def plain_text(words: str) -> str:
    """One line, because a blank line would end a table or a collapsed part."""
    return utf8(" ".join(str(words).split()))


def inline_code(words: str) -> str:
    """The text as code, in a cell of a table."""
    shown = plain_text(words).replace("`", "'").replace("|", "\\|")
    return f"`{shown}`" if shown else ""


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table."""
    lines = list[str]()
    for row in rows:
        cells = [
            inline_code(cell) if name in CODE or (at and row[0] in CODE) else markdown_text(cell)
            for at, (name, cell) in enumerate(zip(columns, row, strict=True))
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return [f"| {' | '.join(map(markdown_text, columns))} |", "|---" * len(columns) + "|", *lines]


def collapsed_details(title: str, lines: Sequence[str]) -> list[str]:
    """Lines that show when their title is clicked."""
    summary = LINKED.sub("\u200b", str(escape(plain_text(title))))
    return [f"<details><summary>{summary}</summary>", "", *lines, "", "</details>"]


def fit_comment(lines: Sequence[str], more: str) -> str:
    """As many whole lines as fit in a comment, with collapsed parts closed, and `more` where some do not fit."""
    kept, size = list[str](), 0
    for line in lines:
        size += len(line) + 1
        if size > MAX_COMMENT_CHARACTERS:
            opened = sum(each.startswith("<details>") for each in kept) - kept.count("</details>")
            kept += ["", "</details>"] * opened + ["", more]
            break
        kept.append(line)
    return "\n".join(kept) + "\n"
