"""Links from the first use of a term on the page to its entry in the glossary."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from markupsafe import Markup, escape

# A word of the page's prose -> the entry of the glossary (`templates/glossary.html`, id `term-NAME`).
ENTRIES = {
    "workload": "workload",
    "layout": "layout",
    "scheme": "scheme",
    "tile": "tile",
    "mesh": "mesh",
    "meshes": "mesh",
    "bound": "bound",
    "round": "hop",
    "hop": "hop",
    "MFU": "mfu",
    "hidden": "hidden",
    "exposed": "exposed",
    "overlap": "overlap",
    "skew": "skew",
}
TRACED = {"hidden", "exposed", "overlap", "skew"}  # entries that only a page with profiles has
WORD = re.compile(rf"\b(?:{'|'.join(ENTRIES)})(?:s)?\b(?![=/-])")


@dataclass
class GlossaryLinks:
    """The links of one page; each entry is linked once, from the first text that is given."""

    traced: bool
    linked: set[str] = field(default_factory=set[str])

    def __call__(self, text: str) -> Markup:
        """The text, escaped, with a link at each word whose entry was not linked before."""
        return Markup(WORD.sub(self._link, str(escape(text))))

    def _link(self, found: re.Match[str]) -> str:
        word = found[0]
        entry = _entry(word, ENTRIES)
        if entry in self.linked or (entry in TRACED and not self.traced):
            return word
        self.linked.add(entry)
        return f'<a class="term" href="#term-{entry}">{word}</a>'


def _entry(word: str, entries: Mapping[str, str]) -> str:
    return entries.get(word) or entries[word.removesuffix("s")]
