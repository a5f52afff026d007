"""Selects plans: by scheme, layout, kernel, or the beginning of a printed plan.

A plan matches a selector if it has every part that the selector names: `ring` matches every plan of this scheme,
`ring/striped@ring=8` a striped ring of 8 with any kernel and tile.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stripectl.core.kernel import kernels
from stripectl.core.layout import layouts
from stripectl.core.mesh import AXES
from stripectl.core.plan import Plan, parse_plan
from stripectl.core.scheme import schemes
from stripectl.util.files import unknown_name

NAMES = {"scheme": schemes, "layout": layouts, "kernel": kernels}


@dataclass(frozen=True)
class Selector:
    """`parts` are the named parts, by `scheme`, `layout`, `kernel`, and the names of axes and options."""

    text: str
    parts: Mapping[str, object]

    @property
    def names_mesh(self) -> bool:
        return any(name in AXES for name in self.parts)

    def fits(self, plan: Plan) -> bool:
        return all(part(plan, name) == value for name, value in self.parts.items())

    def beside(self, other: "Selector") -> "Selector":
        """The selector's meaning when compared with another. It takes the other's scheme where only the other names
        one; and a scheme compared with a layout means this scheme with contiguous shards, such as ring attention
        compared with striped attention."""
        meant = dict[str, str]()
        if "layout" in other.parts and "layout" not in self.parts and "scheme" in self.parts:
            meant["layout"] = "contiguous"
        if "scheme" in other.parts and "scheme" not in self.parts:
            meant["scheme"] = str(other.parts["scheme"])
        if not meant:
            return self
        parts, (_, at, options) = {**self.parts, **meant}, self.text.partition("@")
        return Selector("/".join(str(parts[name]) for name in NAMES if name in parts) + at + options, parts)


def part(plan: Plan, name: str) -> Any:
    """A part of a plan by its name."""
    return plan.size(name) if name in AXES else getattr(plan, name)


def parse_selector(text: str) -> Selector:
    """A selector from its text.

    Raises:
        BadInput: neither the name of a scheme, layout or kernel, nor the beginning of a plan.
    """
    text = text.strip()
    if "/" not in text and "@" not in text:
        kind = next((kind for kind, known in NAMES.items() if text in known.names()), None)
        if kind is None:
            raise unknown_name(
                "scheme, layout or kernel", text, [name for known in NAMES.values() for name in known.names()]
            )
        return Selector(text, {kind: text})
    plan, (names, _, options) = parse_plan(text), text.partition("@")
    named = [*list(NAMES)[: names.count("/") + 1], *(each.partition("=")[0] for each in options.split(",") if each)]
    return Selector(text, {name: part(plan, name) for name in named})
