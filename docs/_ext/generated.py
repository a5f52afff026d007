"""A directive for reference pages: tables that are made from the code when the documentation is built.

    ```{generated} schemes
    ```

`TABLES` holds every table by name; each is a function that returns Markdown. Those that explain a list of names take
the explanations from the body of the directive, a `name: text` per line, and fail the build where a name has no
explanation or an explanation has no name.
"""

import gzip
import importlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import yaml
from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from sphinx.writers.html5 import HTML5Translator

import stripectl
from stripectl.cli.app import COMMANDS
from stripectl.core.capabilities import capabilities
from stripectl.core.plan import kernels, layouts, schemes
from stripectl.core.reason import ReasonKind
from stripectl.core.recurrence import recurrences
from stripectl.export.integration import usage_of
from stripectl.hardware.profile import Hardware, format_shape, hardware_names
from stripectl.hardware.target import Target
from stripectl.models.model_files import load_model
from stripectl.results.cost_source import DESCRIPTIONS
from stripectl.results.labels import workload_label
from stripectl.results.run import Run
from stripectl.util.files import profile_names
from stripectl.util.units import in_unit, nbytes, rate

ROOT = Path(__file__).parents[2]
RUNS = ROOT / "examples" / "runs"
Explained = Mapping[str, str]
Table = Callable[[Explained], str]
TABLES: dict[str, Table] = {}
# What the style of a report says about drawings.
DOCUMENT_LOOK = (
    "<style>svg text:not([fill]) { fill: currentColor } svg line:not([stroke]) { stroke: currentColor }</style>"
)


def table(name: str) -> Callable[[Table], Table]:
    """Register a function as the table of this name."""

    def register(function: Table) -> Table:
        TABLES[name] = function
        return function

    return register


def markdown_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    def line(cells: Sequence[str]) -> str:
        return f"| {' | '.join(cell.replace('|', chr(92) + '|').replace(chr(10), ' ') for cell in cells)} |"

    return "\n".join([line(columns), line(["---"] * len(columns)), *map(line, rows)])


def code(*words: str) -> str:
    return ", ".join(f"`{word}`" for word in words) or "none"


def linked(paper: str) -> str:
    """Links to papers, each by the part of its address that names it."""
    links = [each.strip() for each in paper.split(";") if each.strip()]
    return ", ".join(
        f"[{re.sub(r'https?://(www[.])?', '', each)}]({each})" if "://" in each else each for each in links
    )


def explained(names: Sequence[str], said: Explained) -> list[tuple[str, str]]:
    """Every name with its explanation.

    Raises:
        ValueError: a name has none, or an explanation is of no name.
    """
    if missing := [name for name in names if name not in said]:
        raise ValueError(f"not explained: {', '.join(missing)}")
    if unknown := [name for name in said if name not in names]:
        raise ValueError(f"explained, but not in the code: {', '.join(unknown)}")
    return [(name, said[name]) for name in names]


@table("commands")
def command_pages(said: Explained) -> str:
    """A table of the commands, and one section per command, by sphinx-click."""
    rows = [(f"[`{name}`](#command-{name})", text) for name, text in explained(COMMANDS, said)]
    found = [markdown_table(("command", "what it does"), rows)]
    for name in COMMANDS:
        module = f"stripectl.cli.{name.replace('-', '_')}"
        click = f".. click:: {module}:command\n   :prog: stripectl {name}\n   :nested: full"
        found.append(f"(command-{name})=\n\n```{{eval-rst}}\n{click}\n```")
    return "\n\n".join(found)


@table("schemes")
def scheme_table(said: Explained) -> str:
    """One section per scheme: what it is, its paper, and what it can compute, found by asking the code."""
    found = []
    for name, scheme in schemes.load()[0].items():
        known = capabilities(scheme)
        axes = [axis for axis in known["axes"] if axis in known["axes"] and " " not in axis]
        rows = [
            ("paper", linked(scheme.paper)),
            ("mesh axes", code(*axes) if axes else "none: it runs on one device"),
            ("default layout", code(scheme.default_layout)),
            *((what, code(*known[what])) for what in ("layouts", "kernels", "masks", "passes")),
            ("backward pass", "written by hand" if scheme.backward else "the transpose of the forward pass"),
        ]
        found.append(f"## `{name}`\n\n{schemes.summary(name)}\n\n{markdown_table(('', ''), rows)}")
    return "\n\n".join(found)


@table("scheme-overview")
def scheme_overview(said: Explained) -> str:
    good = schemes.load()[0]
    rows = [
        (f"[`{name}`](#{name.replace('_', '-')})", code(*good[name].axes) if good[name].axes else "one device", text)
        for name, text in explained(list(good), said)
    ]
    return markdown_table(("scheme", "mesh axes", "what devices exchange"), rows)


@table("layouts")
def layout_table(said: Explained) -> str:
    rows = []
    for name, layout in layouts.load()[0].items():
        held = ", ".join(map(str, layout.positions(4, 4)[1]))
        rows.append((f"`{name}`", layouts.summary(name), held, linked(layout.paper)))
    return markdown_table(("layout", "what it is", "positions on device 1 of 4, 16 tokens", "source"), rows)


@table("recurrences")
def recurrence_table(said: Explained) -> str:
    a = {"number": "a number", "diagonal": "a diagonal", "matrix": "a matrix"}
    sent = {"number": "K V + 1", "diagonal": "K V + K", "matrix": "K V + K²"}
    gates = {"none": "none", "scalar": "a number per head", "vector": "a number per key element"}
    rows = [
        (
            f"`{name}`",
            f"{each.title} ({linked(each.paper)})",
            gates[each.gate],
            "yes" if each.delta else "no",
            a[each.map_kind],
            sent[each.map_kind],
        )
        for name, each in recurrences.load()[0].items()
    ]
    columns = "name", "recurrence", "gate of a token", "delta rule", "A of a shard", "elements of a map per head"
    return markdown_table(columns, rows)


@table("kernels")
def kernel_table(said: Explained) -> str:
    found = []
    for name, kernel in kernels.load()[0].items():
        tiles = {kind: str(kernel.default_tile(kind)) for kind in ("cpu", "gpu", "tpu")}
        chosen = "a tile is a whole piece of a shard" if kernel.keeps_all_scores else ""
        chosen = chosen or ("the library chooses" if kernel.counting_tile else "")
        rows = [
            ("source", linked(kernel.paper)),
            ("family", code(kernel.family)),
            ("default tile", chosen or ", ".join(f"{kind} `{tile}`" for kind, tile in tiles.items())),
            ("sides of a tile", f"multiples of {kernel.tile_multiple}" if kernel.tile_multiple > 1 else "any"),
            (
                "where it cannot compute a plan",
                code(kernel.fallback) + " takes its place" if kernel.fallback else "the plan is refused",
            ),
        ]
        found.append(f"## `{name}`\n\n{kernels.summary(name)}\n\n{markdown_table(('', ''), rows)}")
    return "\n\n".join(found)


@table("hardware")
def hardware_table(said: Explained) -> str:
    rows = []
    for name in hardware_names():
        machine = Hardware.load(name)
        figures = [machine.figure(f) for f in ("matmul_flops_per_s_bfloat16", "hbm_bytes", "link_bytes_per_s_one_way")]
        peak, memory, link = rate(figures[0], "FLOP/s"), nbytes(figures[1]), rate(figures[2], "B/s")
        rows.append((f"[`{name}`](#{name})", machine.kind, peak, memory, link, f"`{machine.kernel}`"))
    columns = ("machine", "kind", "peak, bfloat16", "memory", "one link, one way", "default kernel")
    return markdown_table(columns, rows)


@table("hardware-figures")
def hardware_figures(said: Explained) -> str:
    """One section per machine: every figure of a device with the source that it was taken from."""
    found = []
    for name in hardware_names():
        machine = Hardware.load(name)
        rows = [(f"`{key}`", in_unit(key, value), machine.sources[key]) for key, value in machine.figures.items()]
        shape = (
            f"{machine.devices_per_chip} JAX device{'s' * (machine.devices_per_chip > 1)} per chip, "
            f"{machine.devices_per_host} per host, "
            + (f"a torus of {machine.torus_dims} dimensions." if machine.torus_dims else "no torus.")
        )
        shape += f" It takes the tables of `{machine.based_on}`." * bool(machine.based_on)
        shape += f" Not known: {machine.unknown}." * bool(machine.unknown)
        figures = markdown_table(("figure", "value", "source"), rows) if rows else "No figure is published."
        found.append(f"### `{name}`\n\n{shape}\n\n{figures}")
    return "\n\n".join(found)


@table("models")
def model_table(said: Explained) -> str:
    rows = []
    for name in profile_names("models"):
        model = load_model(name)
        sizes = (model.layers, model.hidden, model.heads, model.kv_heads, model.head_dim, model.feed_forward)
        rows.append((f"`{name}`", getattr(model, "attention", "softmax"), *map(str, sizes), f"{model.vocabulary:,}"))
    columns = (
        "model",
        "attention",
        "layers",
        "hidden",
        "heads",
        "key/value heads",
        "head size",
        "feed-forward",
        "vocabulary",
    )
    return markdown_table(columns, rows)


@table("targets")
def target_table(said: Explained) -> str:
    rows = []
    for name in hardware_names():
        machine = Hardware.load(name)
        if machine.kind == "cpu":
            rows.append((f"`{name}:N`", "", "N single-thread processes on this machine"))
        elif machine.torus_dims and not machine.slices:
            largest = f"`{name}:{format_shape(machine.pod)}`"
            hosts = f"whole {format_shape(machine.host)} hosts"
            rows.append(
                (largest, "", f"the largest size, and smaller sizes of {hosts}; it is not known which are sold")
            )
        elif not machine.slices:
            node = machine.devices_per_host
            rows.append((f"`{name}:1` to `{name}:{node}`", "", f"one node; `2*{name}:{node}` is two nodes"))
        else:
            ends = [Target(machine, machine.slices[end]) for end in (0, -1)]
            clouds = " to ".join(f"`{end.cloud_name}`" for end in ends)
            rows.append((" to ".join(f"`{end}`" for end in ends), clouds, f"{len(machine.slices)} sizes are sold"))
    return markdown_table(("target", "cloud name", "what it is"), rows)


def kind_of(values: Sequence[Any]) -> str:
    """The JSON type of values that a field has in the example runs, with the keys of its mappings."""
    words = []
    if any(isinstance(value, bool) for value in values):
        words.append("true or false")
    if any(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        words.append("number")
    if any(isinstance(value, str) for value in values):
        words.append("text")
    if lists := [value for value in values if isinstance(value, list)]:
        inner = kind_of([each for value in lists for each in value][:1000])
        words.append(f"list of {inner}" if not inner.startswith("absent") else "list")
    if mappings := [value for value in values if isinstance(value, dict)]:
        keys = list(dict.fromkeys(key for value in mappings for key in value))
        words.append(f"mapping of {code(*keys[:12])}{' and more' * (len(keys) > 12)}")
    return " or ".join(words) or "absent in the examples"


def example_runs() -> list[dict[str, Any]]:
    """The example runs as this version writes them, with the recommendations that are in their files."""
    found = []
    for path in sorted(RUNS.glob("*.json.gz")):
        if path.name != "large.json.gz":
            content = json.loads(json.dumps(Run.load(path).to_json()))
            found.append(content | {"recommendation": json.loads(gzip.decompress(path.read_bytes()))["recommendation"]})
    return found


@table("run-fields")
def run_fields(said: Explained) -> str:
    runs = example_runs()
    names = ["schema", *(field.name for field in fields(Run))]
    rows = [(f"`{name}`", kind_of([run.get(name) for run in runs]), text) for name, text in explained(names, said)]
    return markdown_table(("field", "type", "meaning"), rows)


@table("reason-kinds")
def reason_kinds(said: Explained) -> str:
    return markdown_table(
        ("kind", "meaning"), [(f"`{name}`", text) for name, text in explained(list(ReasonKind), said)]
    )


@table("measurement-fields")
def measurement_fields(said: Explained) -> str:
    measurements = [m for run in example_runs() for m in run["measurements"]]
    names = list(dict.fromkeys(name for m in measurements for name in m))
    values = {name: [m.get(name) for m in measurements] for name in names}
    rows = [(f"`{name}`", kind_of(values[name]), text) for name, text in explained(names, said)]
    return markdown_table(("field", "type", "meaning"), rows)


@table("integrations")
def integration_snippets(said: Explained) -> str:
    """What each integration writes for one plan of an example run, or why it cannot."""
    run = Run.load(RUNS / "gpu.json.gz")
    known = [m for m in run.measurements if m.status == "ok" and "/zigzag/" in str(m.plan) and m.devices > 1]
    shown = next(m for m in known if m.workload.passes != "forward")
    found = [f"For the plan `{shown.plan}`, {workload_label(shown.workload)}, on `{shown.target}`:"]
    for each in usage_of(shown).values():
        if each.version:
            text = f"```text\n{each.text.rstrip()}\n```\n\n" if each.text else ""
            notes = "\n".join(f"- {note.replace('<', '&lt;')}" for note in each.notes)
            found.append(f"### {each.title} {each.version}\n\n{text}{notes}")
    return "\n\n".join(found)


@table("cost-sources")
def cost_sources(said: Explained) -> str:
    rows = [(f"`{name}`", text) for name, text in explained([*DESCRIPTIONS], said)]
    return markdown_table(("source", "meaning"), rows)


@table("limits")
def limit_table(said: Explained) -> str:
    """Constants of the code by their path in the package, with what each limits."""
    rows = []
    for path, text in said.items():
        module, _, name = path.rpartition(".")
        rows.append((text, f"{getattr(importlib.import_module(f'stripectl.{module}'), name):,}", f"`{path}`"))
    return markdown_table(("limit", "value", "constant"), rows)


@table("python-interface")
def python_interface(said: Explained) -> str:
    """Every public name of the package, by autodoc."""
    found = []
    for name in stripectl.__all__:
        value = getattr(stripectl, name)
        if isinstance(value, type):
            kind = "autoexception" if issubclass(value, Exception) else "autoclass"
            found.append(f".. {kind}:: stripectl.{name}\n   :members:\n   :undoc-members:\n   :show-inheritance:")
        elif callable(value):
            found.append(f".. autofunction:: stripectl.{name}")
    return "```{eval-rst}\n" + "\n\n".join(found) + "\n```"


@table("action")
def action_tables(said: Explained) -> str:
    """Inputs and outputs of action.yml."""
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    inputs = [
        (f"`{name}`", each["description"], f"`{each['default']}`" if each.get("default") else "")
        for name, each in action["inputs"].items()
    ]
    outputs = [(f"`{name}`", each["description"]) for name, each in action["outputs"].items()]
    given, found = (
        markdown_table(("input", "meaning", "default"), inputs),
        markdown_table(("output", "meaning"), outputs),
    )
    return f"{given}\n\n{found}"


@table("accuracy")
def accuracy_tables(said: Explained) -> str:
    """What `stripectl accuracy` prints, as Markdown."""
    from stripectl.analysis.accuracy.tables import compute_accuracy
    from stripectl.cli.accuracy import accuracy_tables as tables

    found = []
    for made in tables(compute_accuracy()):
        columns = [str(column.header) for column in made.columns]
        rows = zip(*([str(cell) for cell in column.cells] for column in made.columns), strict=True)
        found.append(f"**{str(made.title)[:1].upper()}{str(made.title)[1:]}**\n\n{markdown_table(columns, list(rows))}")
    return "\n\n".join(found)


@table("accuracy-chart")
def accuracy_chart(said: Explained) -> str:
    """The figure of the report for all devices, in the colours of the page."""
    from stripectl.reporters.html import published_accuracy
    from stripectl.reporters.html.charts import PANEL

    chart = published_accuracy.of_hardware(None)
    assert chart
    drawing = chart.drawing.draw(PANEL)
    style = f"--c1: #3d8fc6; font: 11px Arial, Helvetica, sans-serif; max-width: {PANEL + 120}px"
    opening = f'<div role="img" aria-label="{chart.label}" style="{style}">'
    return f"{opening}{DOCUMENT_LOOK}{drawing}</div>\n\n{chart.note}"


class Generated(SphinxDirective):
    """The table of a name, parsed as part of the page."""

    required_arguments = 1
    has_content = True

    def run(self) -> list[nodes.Node]:
        name = self.arguments[0]
        lines = [line for line in self.content if line.strip()]
        said = {key.strip(): text.strip() for key, _, text in (line.partition(":") for line in lines)}
        try:
            text = TABLES[name](said)
        except (KeyError, ValueError, AttributeError, ImportError) as error:
            raise self.error(f"cannot make the table {name}: {type(error).__name__}: {error}") from error
        return self.parse_text_to_nodes(text, allow_section_headings=True)


def escape_stars(app: Sphinx, context: object, lines: list[str]) -> None:
    """Help texts are plain text; a star in them, as in 2*h100:8, begins no emphasis."""
    lines[:] = [re.sub(r"(?<=[^*\s])[*](?![*])", r"\*", line) for line in lines]


def examples_as_code(app: Sphinx, context: object, lines: list[str]) -> None:
    """The examples at the end of a command's description as a block of code."""
    commands = [line.lstrip("| ").replace("\\*", "*") for line in lines if line.startswith("|")]
    if commands[:1] == ["Examples:"]:
        kept = [line for line in lines if not line.startswith("|")]
        lines[:] = [*kept, "", ".. code-block:: sh", "", *(f"   {line}" for line in commands[1:]), ""]


def visit_math(self: HTML5Translator, node: nodes.math | nodes.math_block) -> None:
    """Formulas as MathML, which browsers draw without a script and without network."""
    block = isinstance(node, nodes.math_block)
    self.body.append(tex2mathml(node.astext(), as_block=block))
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("generated", Generated)
    app.add_html_math_renderer("mathml", (visit_math, None), (visit_math, None))
    app.setup_extension("sphinx_click")
    for part in ("description", "usage", "options", "arguments", "envvars", "epilog"):
        app.connect(f"sphinx-click-process-{part}", escape_stars)
    app.connect("sphinx-click-process-description", examples_as_code, priority=600)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
