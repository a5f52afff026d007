"""Phrases that make English hard to read, in everything that people read. `python tools/prose.py [PATH ...]`

`tools/prose.toml` names the files and the phrases. A finding is one line: place, phrase, advice. The exit code is 1 if
there are findings, or if an exception in the file is no longer needed.
"""

import ast
import io
import re
import sys
import tokenize
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
TOOLS = ("# noqa", "# pyright", "# type")  # comments for programs
READ = {".md", ".html", ".yml", ".yaml", ".cff", ".py"}


class Finding(NamedTuple):
    path: str
    line: int
    name: str
    text: str
    advice: str


def files(patterns: list[str], excluded: list[str]) -> Iterator[Path]:
    for pattern in patterns:
        for found in sorted(ROOT.glob(pattern)):
            for path in [found] if found.is_file() else sorted(found.rglob("*")):
                name = path.relative_to(ROOT).as_posix()
                if path.suffix in READ and path.is_file() and not any(fnmatch(name, each) for each in excluded):
                    yield path


def prose(path: Path) -> Iterator[tuple[int, str]]:
    """(line, text) of the words that people read in a file, without code and markup; of Python the comments, and the
    strings that hold words."""
    text = path.read_text(errors="replace")
    if path.suffix == ".py":
        yield from comments(text)
        for line, value in strings(ast.parse(text)):
            if " " in value.strip():
                yield from ((line + at, part) for at, part in enumerate(value.splitlines()))
        return
    fence = ""
    for number, line in enumerate(text.splitlines(), 1):
        mark = re.match(r"\s*(`{3,}|~{3,})(.*)", line)
        if mark and (not fence or line.strip() == fence):
            # The body of {generated} is prose: explanations of names.
            fence = "" if fence else mark[1] * ("{generated}" not in mark[2])
        elif not fence:
            yield number, line


def comments(text: str) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and not token.string.startswith(TOOLS):
            yield token.start[0], token.string.lstrip("# ")


def strings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Each string of a program; values in a formatted string are dots, so that a phrase may continue after a value."""
    parts = set[int]()
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts |= {id(part) for part in node.values}
            texts = (part.value if isinstance(part, ast.Constant) else "·" for part in node.values)
            yield node.lineno, "".join(map(str, texts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
            yield node.lineno, node.value


def findings(paths: list[str] | None = None) -> list[Finding]:
    """All places where a phrase of the list occurs and is not allowed."""
    settings = tomllib.loads((ROOT / "tools" / "prose.toml").read_text())
    allowed, used, found = settings.get("allowed", {}), set[str](), []
    for path in files(paths or settings["paths"], settings["exclude"]):
        name = path.relative_to(ROOT).as_posix()
        for number, line in prose(path):
            text = re.sub(r"`[^`]*`|<[^>]*>|\{[{%#].*?[}%#]\}|\]\([^)]*\)", "·", line)
            for phrase, each in settings["phrases"].items():
                if match := re.search(each["pattern"], text):
                    key = f"{name}: {phrase}"
                    used.add(key)
                    if key not in allowed:
                        near = text[max(0, match.start() - 30) : match.end() + 30].strip()
                        found.append(Finding(name, number, phrase, near, each["try"]))
    for key in allowed.keys() - used if paths is None else ():
        found.append(Finding("tools/prose.toml", 0, "allowed", key, "remove the exception: it is not needed"))
    return found


def main() -> None:
    found = findings(sys.argv[1:] or None)
    for each in found:
        print(f"{each.path}:{each.line}: {each.name}: ...{each.text}... Try: {each.advice}.")
    if found:
        raise SystemExit(f"{len(found)} phrases to look at")


if __name__ == "__main__":
    main()
