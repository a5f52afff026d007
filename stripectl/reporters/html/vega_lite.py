"""The files of `templates/charts` are drawings in Vega-Lite; here they get their rows and parameters and become static
SVG in the page's colours.

A file names its data sets and its parameters, with values with which it can be drawn alone; an optional layer is a
layer whose data set is empty. Text and lines take the page's own colour, so a chart is legible in light and dark; every
colour comes with a shape or a word. style.css has the six colours (blue, vermilion and green of Okabe and Ito 2008, and
three more) for light and dark pages, all with a contrast of 3:1.
"""

import functools
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias

from stripectl.reporters.html.drawing import draw_svg
from stripectl.util.files import data_folder, utf8
from stripectl.util.json import Json

TIP = "\u25b8"  # begins the text of a mark that a reader sees by pointing at it
SUBPIXEL_DIGITS = re.compile(r"(?<=\.\d\d)\d+(?!\d*e)")  # digits of a pixel that are not visible
TAG = re.compile(r"<[^>]*>")
EMPTY = re.compile(r'<path [^>]* d=""[^>]*/>')
TIPS = re.compile(rf' aria-label="{TIP}([^"]*)"')
IDLE = re.compile(
    r' (?:class|role|aria-[a-z]+|pointer-events|font-family|xmlns:xlink|version)="[^"<>&]*"'
    r'| aria-label="[^"]*"'
    r'| (?:opacity|stroke-width|fill-opacity)="1"| stroke-width="0"'
)
USUAL = {  # as in style.css for every drawing
    "text": re.compile(r' (?:font-size="11px"|font-weight="normal"|fill="currentColor")'),
    "line": re.compile(r' stroke="currentColor"'),
}
INVISIBLE = re.compile(r'<path(?: transform="[^"]*")? d="[^"]*"(?: transform="[^"]*")?/>')

VegaLite: TypeAlias = dict[str, Any]  # a file of Vega-Lite
DataSets: TypeAlias = Mapping[str, Iterable[NamedTuple]]


def draw_file(name: str, data: DataSets, size: Mapping[str, Json], **params: Json) -> str:
    """The file NAME.vl.json as SVG, with rows in its data sets and with these parameters; `size` is its width and
    height, or {"step": pixels of each row}."""
    return svg({**filled(name, data, **params), **size})


def filled(name: str, data: DataSets, **params: Json) -> VegaLite:
    """The file NAME.vl.json with rows in its data sets and with these parameters; others keep their values."""
    form: VegaLite = json.loads(_text(f"{name}.vl.json"))
    form["datasets"] |= {of: [row._asdict() for row in rows] for of, rows in data.items()}
    form["params"] = [
        {**each, "value": params[each["name"]]} if each["name"] in params else each for each in form["params"]
    ]
    return form


@functools.cache
def _text(name: str) -> str:
    return (data_folder("templates") / "charts" / name).read_text(encoding="utf-8")


def svg(form: VegaLite) -> str:
    """The drawing as text, in the page's colours; marks with a text keep it as `data-tip`."""
    text = draw_svg({**form, "config": json.loads(_text("config.json"))})
    return _without_idle_groups(TAG.sub(_slim, EMPTY.sub("", text)))


def _slim(tag: re.Match[str]) -> str:
    """A tag without attributes that have no visible effect."""
    text = IDLE.sub("", TIPS.sub(r' data-tip="\1"', tag[0]))
    if usual := USUAL.get(text[1:5]):
        text = usual.sub("", text)
    if INVISIBLE.fullmatch(text):
        return ""
    return re.sub(r' (?:d|transform)="[^"]*"', lambda found: SUBPIXEL_DIGITS.sub("", found[0]), text)


def _without_idle_groups(text: str) -> str:
    """The text without groups that have no attribute and only nest."""
    idle: list[bool] = []

    def kept(tag: re.Match[str]) -> str:
        if tag[0].startswith("<g") and tag[0].endswith("/>"):
            return ""
        if tag[0].startswith("<g"):
            idle.append(tag[0] == "<g>")
            return "" if idle[-1] else tag[0]
        if tag[0] == "</g>":
            return "" if idle.pop() else tag[0]
        return tag[0]

    return TAG.sub(kept, text)


def tip(words: str) -> str:
    """The text of a mark, for its `description`."""
    return TIP + utf8(words)
