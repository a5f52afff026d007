"""The pictures of the documentation, drawn from stripectl's own code. `python docs/pictures.py` writes docs/images/.

Every picture has a background of its own, so that it reads the same on a light and on a dark page.
"""

import ast
import sys
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from stripectl.core.bounds import ring_work
from stripectl.core.layout import MASKS, Tile, layouts
from stripectl.core.plan import parse_plan, schemes
from stripectl.core.workload import Workload
from stripectl.costs.links import with_links
from stripectl.costs.sources.datasheet import datasheet_costs
from stripectl.hardware.profile import Hardware
from stripectl.simulate.simulation import Simulation, simulate
from stripectl.util.units import duration

ROOT = Path(__file__).parents[1]
IMAGES = Path(__file__).parent / "images"
# Okabe and Ito's palette, which people with any colour vision can tell apart; text on these colours is dark.
DEVICES = ("#56b4e9", "#e69f00", "#2fb58d", "#d48fb6")
INK, SOFT, PAPER, LINE, EMPTY = "#1f2328", "#57606a", "#ffffff", "#d0d7de", "#f3f5f7"
COMPUTE, HIDDEN, EXPOSED = "#56b4e9", "#2fb58d", "#d55e00"
SHARDS, ROWS = 4, 64
ROLES = {
    "cli": "parses a command, makes one call, gives one exit code",
    "api": "the Python interface, as thin as the command line",
    "reporters": "show a run: terminal, HTML, Markdown, files for CI",
    "runner": "a request becomes cases, a backend measures them; tuning searches",
    "analysis": "conclusions from results: ranking, recommendation, comparison, claims",
    "export": "a plan as YAML, Python, or configuration of another framework",
    "measure": "backend: a plan timed on devices of this machine",
    "compile": "backend: a plan compiled ahead of time for a machine that is not here",
    "simulate": "backend: a scheme run on simulated clocks",
    "profiling": "reads XLA profiles: overlap by device, hop and mesh axis",
    "workers": "processes that touch devices, on one host or many",
    "training": "the public attention function, layers bound to JAX, a training step",
    "execute": "a scheme bound to JAX, and its check against float64 attention",
    "costs": "cost models: seconds of tiles and transfers, and default tiles",
    "hlo": "reads compiled programs: collectives, schedules, rewrites, bundles",
    "results": "measurements, the run that holds them, its file, its history",
    "hardware": "machines, targets, and where a mesh lies on their links",
    "models": "models by name or by their file, one file per family of config.json",
    "schemes": "one file per published scheme",
    "layouts": "one file per layout",
    "layers": "parts of a model as programs over ops and comm",
    "kernels": "one folder per kernel",
    "core": "workload, plan, layout, the protocols of schemes and kernels, bounds",
    "statistics": "one file per statistical method",
    "util": "units, atomic files, safe YAML, caches, progress",
    "compat": "where versions of JAX differ",
    "errors": "the errors that a user can act on",
}
FONT = "font-family='system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif'"


class Drawing:
    """An SVG: rectangles, lines and text at coordinates in pixels."""

    def __init__(self, width: int, height: int, title: str, description: str) -> None:
        self.width, self.height, self.parts = width, height, list[str]()
        self.title, self.description = title, description
        self.box(0.5, 0.5, width - 1, height - 1, PAPER, stroke=LINE, radius=8)

    def box(
        self, x: float, y: float, width: float, height: float, fill: str, stroke: str = "none", radius: float = 2
    ) -> None:
        shape = f"x='{x:g}' y='{y:g}' width='{max(width, 0):.2f}' height='{height:g}' rx='{radius:g}'"
        self.parts.append(f"<rect {shape} fill='{fill}' stroke='{stroke}'/>")

    def text(
        self, x: float, y: float, text: str, size: int = 12, anchor: str = "start", fill: str = INK, bold: bool = False
    ) -> None:
        weight = " font-weight='600'" if bold else ""
        self.parts.append(
            f"<text x='{x:g}' y='{y:g}' font-size='{size}' text-anchor='{anchor}' fill='{fill}'{weight}>"
            f"{escape(text)}</text>"
        )

    def arrow(self, x1: float, y1: float, x2: float, y2: float) -> None:
        self.parts.append(
            f"<line x1='{x1:g}' y1='{y1:g}' x2='{x2:g}' y2='{y2:g}' stroke='{SOFT}' stroke-width='1.5' "
            "marker-end='url(#head)'/>"
        )

    def svg(self) -> str:
        head = (
            "<defs><marker id='head' viewBox='0 0 8 8' refX='7' refY='4' markerWidth='7' markerHeight='7' "
            f"orient='auto-start-reverse'><path d='M0 0 8 4 0 8z' fill='{SOFT}'/></marker></defs>"
        )
        size = f"width='{self.width}' height='{self.height}' viewBox='0 0 {self.width} {self.height}'"
        words = f"<title>{escape(self.title)}</title>\n<desc>{escape(self.description)}</desc>"
        opening = f"<svg xmlns='http://www.w3.org/2000/svg' {size} role='img' {FONT}>"
        return "\n".join([opening, words, head, *self.parts, "</svg>", ""])


def draw_layouts() -> Drawing:
    """The positions that each layout gives to four devices, and the work of every device in every round."""
    drawing = Drawing(
        760,
        366,
        "Three layouts of a sequence on four devices",
        "Above, sixteen tokens coloured by the device that holds them. Below, for each device and each round of a ring "
        "under a causal mask, the share of the scores that are live. A round lasts as long as its busiest device.",
    )
    works = {
        name: ring_work(layouts[name], SHARDS, ROWS, MASKS["causal"], Tile(1, 1))
        for name in ("contiguous", "striped", "zigzag")
    }
    slowest = works["contiguous"].critical_pairs
    for at, (name, work) in enumerate(works.items()):
        left = 24 + at * 246
        drawing.text(left, 32, name, 15, bold=True)
        drawing.text(left, 54, "which device holds token 0 to 15", 11, fill=SOFT)
        held = layouts[name].positions(SHARDS, 4)
        for device, tokens in enumerate(held):
            for token in tokens:
                drawing.box(left + 13.5 * int(token), 62, 12.5, 22, DEVICES[device])
        drawing.text(left, 110, "live scores by device and round", 11, fill=SOFT)
        share = work.pairs / ROWS**2
        for device in range(SHARDS):
            y = 118 + 40 * device
            drawing.box(left, y, 16, 34, DEVICES[device])
            drawing.text(left + 8, y + 21, str(device), 11, "middle")
            for step in range(SHARDS):
                x, live = left + 24 + 49 * step, float(share[device, step])
                drawing.box(x, y, 46, 34, EMPTY)
                drawing.box(x, y, 46 * live, 34, DEVICES[device])
                drawing.text(x + 23, y + 21, f"{live:.0%}", 11, "middle")
        for step in range(SHARDS):
            drawing.text(left + 47 + 49 * step, 294, f"round {step}", 10, "middle", SOFT)
        length = work.critical_pairs / slowest
        drawing.text(left, 322, "time of all rounds", 11, fill=SOFT)
        drawing.box(left, 330, 216, 14, EMPTY)
        drawing.box(left, 330, 216 * length, 14, SOFT)
        drawing.text(left + 216, 322, f"{slowest / work.critical_pairs:.2f}x as fast", 11, "end", bold=True)
    return drawing


class Recorder:
    """`attend` and `comm` of one device, which record what a scheme does; keys are named by their source."""

    def __init__(self, me: int, shards: int) -> None:
        self.me, self.shards, self.met = me, shards, list[int]()

    def size(self, axis: str) -> int:
        return self.shards

    def index(self, axis: str) -> int:
        return self.me

    def rounds(self, by: int = 1) -> int:
        return self.shards

    def empty(self, q: Any) -> None:
        return None

    def shift(self, x: int, axis: str, what: str = "", by: int = 1) -> int:
        return (x - by) % self.shards

    def loop(self, first: int, last: int, body: Any, state: Any) -> Any:
        for step in range(first, last):
            state = body(step, state)
        return state

    def __call__(self, q: Any, kv: int, me: int, src: int, *, into: Any) -> None:
        assert kv == src, "the scheme names the keys that it holds"
        self.met.append(src)


def ring_order() -> list[list[int]]:
    """Whose keys each device of a ring computes with, round by round: the ring scheme itself says so."""
    found = []
    for me in range(SHARDS):
        recorder = Recorder(me, SHARDS)
        schemes["ring"].forward(None, me, recorder, recorder)
        found.append(recorder.met)
    return found


def draw_ring() -> Drawing:
    drawing = Drawing(
        760,
        250,
        "The rounds of a ring of four devices",
        "In every round each device computes its own queries with the keys and values that it holds, and "
        "sends these to the next device. After four rounds and three hops every query has seen every key.",
    )
    order = ring_order()
    for device in range(SHARDS):
        y = 48 + 46 * device
        drawing.text(24, y + 20, f"device {device} keeps", 12, fill=SOFT)
        drawing.box(118, y, 56, 30, DEVICES[device])
        drawing.text(146, y + 20, f"Q {device}", 12, "middle")
    for step in range(SHARDS):
        left = 214 + 142 * step
        drawing.text(left, 30, f"round {step}", 14, bold=True)
        for device in range(SHARDS):
            y, source = 48 + 46 * device, order[device][step]
            drawing.box(left, y, 64, 30, DEVICES[source])
            drawing.text(left + 32, y + 20, f"K/V {source}", 12, "middle")
            if step < SHARDS - 1:
                following = 48 + 46 * ((device + 1) % SHARDS)
                drawing.arrow(left + 66, y + 15, left + 140, following + 15)
    drawing.text(
        24,
        240,
        "Each arrow is a hop. It runs while the device computes its queries with the keys of the round.",
        11,
        fill=SOFT,
    )
    return drawing


def timeline(plan: str, seq_len: int) -> Simulation:
    """A plan on four chips of a TPU v5e, simulated from the datasheet."""
    hardware, made = Hardware.load("v5e"), parse_plan(plan)
    work = Workload(seq_len=seq_len, heads=16, kv_heads=16, head_dim=128)
    return simulate(work, made, with_links(hardware, datasheet_costs(hardware, work, made), None))


def spans(times: Sequence[tuple[np.ndarray, np.ndarray]], device: int) -> list[tuple[float, float]]:
    return [(float(start[device]), float(end[device])) for start, end in times if end[device] > start[device]]


def draw_overlap() -> Drawing:
    """Which hops hide: a ring with short blocks and two rings with long blocks."""
    drawing = Drawing(
        760,
        470,
        "Hidden and exposed hops",
        "Simulated timelines of the four devices of a ring. A hop that runs while its device computes is hidden. A hop "
        "that runs while the device has nothing to compute is exposed. Devices with less work wait: that is skew.",
    )
    shown = (
        ("Short shards: hops last longer than the tiles and are exposed", "ring/striped/xla@ring=4,tile=256", 4096),
        ("Long shards, striped: every hop is hidden", "ring/striped/xla@ring=4,tile=1024", 65536),
        (
            "Long shards, contiguous: the others wait for device 3",
            "ring/contiguous/xla@ring=4,tile=1024",
            65536,
        ),
    )
    for at, (words, plan, seq_len) in enumerate(shown):
        found, top = timeline(plan, seq_len), 20 + 138 * at
        scale = 640 / found.seconds
        drawing.text(24, top + 12, words, 13, bold=True)
        drawing.text(736, top + 12, f"{seq_len // 1024}k tokens, {duration(found.seconds)}", 11, "end", SOFT)
        compute = [(each.start_s, each.end_s) for each in found.rounds]
        for device in range(SHARDS):
            y = top + 22 + 26 * device
            drawing.text(24, y + 14, f"device {device}", 11, fill=SOFT)
            drawing.box(90, y, 640, 22, EMPTY)
            busy = spans(compute, device)
            for start, end in busy:
                drawing.box(90 + scale * start, y, scale * (end - start) - 0.6, 12, COMPUTE, radius=1)
            for start, end in spans(found.windows, device):
                drawing.box(90 + scale * start, y + 14, scale * (end - start) - 0.6, 6, EXPOSED, radius=1)
                for first, last in busy:
                    if min(end, last) > max(start, first):
                        width = scale * (min(end, last) - max(start, first)) - 0.6
                        drawing.box(90 + scale * max(start, first), y + 14, width, 6, HIDDEN, radius=1)
    for at, (colour, words) in enumerate(
        ((COMPUTE, "compute"), (HIDDEN, "hop, hidden"), (EXPOSED, "hop, exposed"), (EMPTY, "idle"))
    ):
        drawing.box(90 + 130 * at, 443, 14, 12, colour, stroke=LINE)
        drawing.text(110 + 130 * at, 453, words, 12)
    return drawing


def folders() -> list[tuple[str, ...]]:
    """The order of the folders, from top to bottom, as the test of the imports holds it."""
    for path in sorted((ROOT / "tests").rglob("test_imports.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "FOLDERS":
                return ast.literal_eval(node.value)
    raise SystemExit("no tests/**/test_imports.py holds FOLDERS")


def draw_folders() -> Drawing:
    rows = [folder for row in folders() for folder in row]
    groups = {row[0]: len(row) for row in folders()}
    drawing = Drawing(
        760,
        44 + 25 * len(rows),
        "The folders of the package, from top to bottom",
        "Every folder may import only from folders below it.",
    )
    drawing.text(24, 26, "A folder imports only from folders below it", 13, bold=True)
    y, at = 40, 0
    while at < len(rows):
        size = groups[rows[at]]
        drawing.box(46, y - 1, 696, 25 * size - 3, EMPTY, stroke=LINE, radius=4)
        for folder in rows[at : at + size]:
            drawing.text(58, y + 15, folder, 12, bold=True)
            drawing.text(160, y + 15, ROLES[folder], 11, fill=SOFT)
            y += 25
        at += size
    drawing.arrow(30, 42, 30, y - 6)
    return drawing


def draw_flow() -> Drawing:
    drawing = Drawing(
        760,
        176,
        "From a command to an answer",
        "The command line or the Python interface makes a request. The runner makes cases, a backend turns each "
        "case into a measurement, analysis draws conclusions, and reporters and exports show them.",
    )
    boxes = (
        ("command", "strings", "parsed once"),
        ("runner", "request, cases", "planned or refused"),
        ("backends", "measure", "compile, simulate"),
        ("results", "run.json", "measurements"),
        ("analysis", "recommendation", "comparison, claims"),
        ("reporters, export", "terminal, HTML", "flags to paste"),
    )
    for at, (name, *words) in enumerate(boxes):
        x = 16 + 123 * at
        drawing.box(x, 50, 110, 76, EMPTY, stroke=LINE, radius=6)
        drawing.text(x + 55, 74, name, 12, "middle", bold=True)
        for line, word in enumerate(words):
            drawing.text(x + 55, 94 + 18 * line, word, 11, "middle", SOFT)
        if at:
            drawing.arrow(x - 12, 88, x - 1, 88)
    drawing.text(16, 30, "One direction: values go right, and nothing is handed back", 13, bold=True)
    drawing.text(
        16,
        152,
        "A plan that is refused or fails is a measurement with a reason; the other plans continue.",
        11,
        fill=SOFT,
    )
    return drawing


PICTURES = {
    "layouts": draw_layouts,
    "ring": draw_ring,
    "overlap": draw_overlap,
    "folders": draw_folders,
    "flow": draw_flow,
}


def main() -> None:
    """Write every picture, or with --check say which differ from the code."""
    stale = []
    for name, draw in PICTURES.items():
        path, text = IMAGES / f"{name}.svg", draw().svg()
        if "--check" in sys.argv:
            stale += [path.name] * (not path.exists() or path.read_text() != text)
        else:
            IMAGES.mkdir(exist_ok=True)
            path.write_text(text)
    if stale:
        raise SystemExit(f"{', '.join(stale)}: not as the code draws them now. Run: python docs/pictures.py")


if __name__ == "__main__":
    main()
