"""The pages of the documentation as the tests read them: their blocks of code, each with its mark, and their links."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    *sorted(path for path in (ROOT / "docs").rglob("*.md") if "_build" not in path.parts),
]
RUNS = "runs"
NOT_RUN = "not run: "


class Block(NamedTuple):
    """A fenced block: where it is, its language, the comment in the line before it (`<!-- runs -->`), and its text."""

    page: str
    line: int
    language: str
    mark: str
    text: str

    @property
    def id(self) -> str:
        return f"{self.page}:{self.line}"


def page_name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def blocks_of(path: Path) -> Iterator[Block]:
    lines = path.read_text().splitlines()
    at = 0
    while at < len(lines):
        opening = re.fullmatch(r"(`{3,})(.*)", lines[at])
        if not opening:
            at += 1
            continue
        end = next(i for i in range(at + 1, len(lines)) if lines[i] == opening[1])
        mark = re.fullmatch(r"<!-- (.*) -->", lines[at - 1]) if at else None
        text = "\n".join(lines[at + 1 : end])
        yield Block(page_name(path), at + 1, opening[2].strip(), mark[1] if mark else "", text)
        at = end + 1


BLOCKS = [block for path in PAGES for block in blocks_of(path)]


def commands_of(block: Block) -> list[str]:
    """The command lines of a block of shell code, without comments."""
    found = []
    for line in block.text.splitlines():
        if line := re.sub(r"(^|\s+)#.*$", "", line).strip():
            found.append(line)
    return found


def slug(heading: str) -> str:
    """The anchor of a heading on GitHub."""
    plain = re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
    return re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", plain).strip())


def anchors(path: Path) -> set[str]:
    text = re.sub(r"^(`{3,}).*?^\1$", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {slug(heading) for heading in headings} | set(re.findall(r"^\(([\w-]+)\)=$", text, re.MULTILINE))
