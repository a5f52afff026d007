"""Pages of runs, with the recommendation that their figures support, as reporters write and a browser reads them."""

from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from stripectl.analysis.recommendation import recommended
from stripectl.reporters.html.page import render, render_several
from stripectl.reporters.html.page_content import page_context
from stripectl.reporters.markdown_report import page_markdown
from stripectl.results.run import Run

HOSTILE = (
    "javascript:alert(1)",
    """<script>alert(1)</script>" onerror="alert(1)' x=' --></title></style></svg><img src=x>]]>&lt;{{ 7*7 }}""",
    "half a character: \ud800",
)


class Page(HTMLParser):
    """Everything a browser would act on."""

    VOID = ("meta", "br", "wbr", "img", "link", "input", "hr")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.tags)


def check_harmless(page: Page) -> None:
    """Well-formed, runs nothing but its own script, loads nothing."""
    assert page.open == []
    names = [tag for tag, _ in page.tags]
    assert names.count("script") == names.count("style") == 1
    outside = ("img", "link", "iframe", "object", "embed", "image", "use", "base", "form", "foreignobject", "video")
    assert not set(names) & set(outside)
    for tag, attributes in page.tags:
        assert not [name for name in attributes if name.startswith("on") or name in ("src", "srcset", "xlink:href")]
        assert "style" not in attributes, tag
        href = attributes.get("href") or "#"
        assert href.startswith(("#", "data:application/gzip;base64,"))
        assert "url(" not in (attributes.get("fill") or "")


def carried_by(text: str, folder: Path) -> Run:
    """The run in a page, as stripectl reads it."""
    (folder / "page.html").write_text(text)
    return Run.load(folder / "page.html")


def poison(value: Any, text: str) -> Any:
    """The value with `text` in place of every string that may be any, and for every name that is data."""
    if isinstance(value, dict):
        kept = ("workload", "plan", "over", "status", "method", "source")
        return {
            (text if name in ("jax", "collective-permute") else name): each if name in kept else poison(each, text)
            for name, each in value.items()
        }
    if isinstance(value, list | tuple):
        return type(value)(poison(each, text) for each in value)
    return text if isinstance(value, str) else value


def page_of(run: Run, past: Sequence[Run] | None = None) -> str:
    """Return the page of a run, as after a bench or from its file."""
    return render(recommended(run), past=past)


def page_of_several(runs: Sequence[Run]) -> str:
    """Return the page of runs side by side."""
    return render_several([recommended(run) for run in runs])


def content_of(run: Run, past: Sequence[Run] | None = None) -> dict[str, Any]:
    """Return everything that the page of a run shows, as plain data."""
    return page_context(recommended(run), past)


def markdown_of(runs: Sequence[Run]) -> str:
    """Return a run, or several, as markdown."""
    return page_markdown([recommended(run) for run in runs])
