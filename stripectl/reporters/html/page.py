"""A run as one HTML file: run -> plain dict -> template.

`page_content.page_context` has everything that the page shows, as data; the template arranges it. Each chart draws
itself, and has its own module, which chooses its measurements.
"""

import base64
import functools
import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import jinja2
from markupsafe import Markup, escape

from stripectl.reporters.cells import MARKS as METHOD_MARKS
from stripectl.reporters.html import side_by_side
from stripectl.reporters.html.charts import NARROW, PANEL, SMALL_PANEL, Chart, PageContext, Section
from stripectl.reporters.html.drawing import start_drawer
from stripectl.reporters.html.page_content import page_context
from stripectl.results.labels import METHOD_WORDS
from stripectl.results.run import Run
from stripectl.util.files import data_folder, utf8
from stripectl.util.output import write_atomically
from stripectl.util.progress import Say, quiet

MARKS = METHOD_MARKS | {"counted": "∑", "published": "★"}
SMALL, BROAD = 0.86, 1.1  # of the width that a drawing was given


def write_report(run: Run, path: Path, say: Say = quiet, past: Sequence[Run] | None = None) -> None:
    """Write the report of a run that has its recommendation (`recommended`); `past` are the runs of a history up to
    it.

    Raises:
        BadInput: the folder cannot be written.
    """
    write_atomically(path, render(run, say, past))


def render(run: Run, say: Say = quiet, past: Sequence[Run] | None = None) -> str:
    """Return the page of a run that has its recommendation. It loads nothing and is complete without its script; text
    that UTF-8 cannot hold is replaced."""
    start_drawer()
    said = page_context(run, past)
    figures = figures_of(said["sections"].values())
    figures += [[each] for p in said["traces"]["profiles"] for each in (p["timeline"], p["hops"]) if each]
    figures += [[each] for each in said["published"]]
    if said["first"]:
        figures.insert(0, [said["first"]["chart"]])
    return _page("report.html", said, figures, say)


def render_several(runs: Sequence[Run], say: Say = quiet) -> str:
    """The page with runs side by side."""
    start_drawer()
    said = side_by_side.side_by_side_context(runs)
    return _page("several.html", said | {"terms": escape}, figures_of([said["part"]]), say)


Figure = Sequence[Chart]  # the panels of a figure


def figures_of(sections: Iterable[Section]) -> list[Figure]:
    return [group["charts"] for part in sections for group in part["groups"]]


def _page(template: str, said: Mapping[str, object], figures: Sequence[Figure], say: Say) -> str:
    done, total = 0, sum(map(len, figures))
    for panels in figures:
        for chart in panels:
            say(f"drawing: {chart.title}", done, total)
            chart.drawings = drawings(chart, len(panels))
            chart.span = len(panels) > 2 and any(width_of(text) > BROAD * SMALL_PANEL for _, text in chart.drawings)
            done += 1
    return utf8(_templates().get_template(template).render(said))


def drawings(chart: Chart, panels: int) -> list[tuple[str, Markup]]:
    """SVGs by the class of screens that show them: the only chart of a figure is drawn for wide and for narrow screens;
    one of several panels fits both. Two and four panels have two columns, others three."""
    widths = (("wide", chart.wide), ("narrow", NARROW))
    if panels > 1 or chart.one_size:
        widths = (("panel-size", PANEL if panels in (2, 4) else SMALL_PANEL),)
    found = [(name, chart.drawing.draw(width), width) for name, width in widths]
    return [(name + " small" * keeps_its_size(text, width), Markup(text)) for name, text, width in found if text]


def keeps_its_size(drawing: str, width: int) -> bool:
    """Whether a drawing needs much less room than it was given, so that it keeps its size."""
    return width_of(drawing) < SMALL * width


def width_of(drawing: str) -> float:
    """The pixels that a drawing needs without a scale."""
    return float(drawing.partition(' width="')[2].partition('"')[0])


@functools.cache
def _templates() -> jinja2.Environment:
    folder = data_folder("templates")
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    untyped = cast(Any, made)  # the filters and globals of Jinja have no types
    untyped.filters |= {"breakable": _breakable, "unbroken": _unbroken}
    shared: PageContext = {"marks": MARKS, "words_of": METHOD_WORDS}
    for name in ("style.css", "page.js"):
        text = (folder / name).read_text(encoding="utf-8")
        shared[name.partition(".")[0]] = {"text": Markup(text), "hash": content_hash(text)}
    untyped.globals |= shared
    return made


def _breakable(plan: str) -> str:
    """A plan that a browser may break after its marks."""
    return Markup("<wbr>").join(map(escape, re.split(r"(?<=[@,/])", plan)))


def _unbroken(text: str) -> str:
    """A text whose products, such as 2 x 4, a browser does not break."""
    return re.sub(r"(?<=\d) x (?=\d)", "\u00a0x\u00a0", text)


def content_hash(text: str) -> str:
    """The name of a style or a script in a content security policy."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
