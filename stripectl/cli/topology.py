"""`stripectl topology`: a machine's devices, links and rates."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stripectl.cli import headings, options
from stripectl.cli.paths import PATH

if TYPE_CHECKING:
    from stripectl.core.model import Model
    from stripectl.hardware.placement import MeshPlacement
    from stripectl.hardware.profile import Hardware
    from stripectl.measure.local_target import LocalTarget
    from stripectl.runner.options import RequestOptions


@click.command("topology")
@headings.options(options.TARGET)
@click.option(
    "--mesh", metavar="MESH", help="Mesh to place on the links: ring=4,tensor=4. [default: one ring of all devices]"
)
@click.option("--model", default="1b", show_default=True, help="Model whose heads share keys and values.")
@click.option("--measure", is_flag=True, help="Measure link and matmul rates, and save them as a profile.")
@click.option("--save", type=PATH, default="stripectl-hardware.yaml", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with every device and every hop.")
@click.option("--quiet", is_flag=True, help="Show no progress.")
def command(mesh: str | None, model: str, measure: bool, save: Path, as_json: bool, quiet: bool, **given: Any) -> None:
    """Show devices, links and rates, the placement of a mesh, and the smallest block whose hop hides.

    A target is a TPU slice by its shape in chips (v4:2x2x4) or by the cloud's name (v4-32), a node of GPUs (h100:8),
    several of these (2*v5e:4x4, 2*h100:8), processes on this machine (cpu:4), or local. stripectl list targets shows
    all of them.

    \b
    Examples:
      stripectl topology
      stripectl topology --target v5p:2x2x4 --model llama3-8b
      stripectl topology --target v5e-16 --mesh ring=4,tensor=4
      stripectl topology --target 2*h100:8 --json
      stripectl topology --measure --save mine.yaml
      stripectl bench --seqlen 256k --hardware mine.yaml
    """
    import json

    from stripectl.core.mesh import make_mesh, parse_mesh
    from stripectl.hardware.placement import place_mesh
    from stripectl.models.model_files import load_model
    from stripectl.reporters.terminal import topology
    from stripectl.runner.options import RequestOptions

    asked, sizes, saved = RequestOptions.of(given), load_model(model), save if measure else None
    axes = parse_mesh(mesh) if mesh else None
    place = find_target(asked, saved, quiet)
    wired = place_mesh(place.target, make_mesh({"ring": place.target.devices}) if axes is None else axes)
    if as_json:
        click.echo(json.dumps(topology.topology_json(wired), indent=1))
    else:
        show_topology(wired, place.here, sizes, saved)


def find_target(asked: "RequestOptions", saved: Path | None, quiet: bool) -> "LocalTarget":
    """The target and its devices that are here; if its rates are to be saved, with the rates that are measured."""
    from stripectl.measure.local_target import local_target
    from stripectl.measure.local_workers import LocalWorkers
    from stripectl.measure.machine_rates import measured_profile
    from stripectl.measure.machine_timings import MachineTimings
    from stripectl.reporters.terminal.screen import ProgressDisplay
    from stripectl.runner.parse import parse_hardware

    with ProgressDisplay(quiet) as reporter, LocalWorkers(reporter.say) as workers:
        place = local_target(asked.target, parse_hardware(asked.hardware), workers)
        if saved is None:
            return place
        machine = measured_profile(place, MachineTimings(workers), saved)
        return replace(place, target=replace(place.target, hardware=machine))


def show_topology(wired: "MeshPlacement", here: int, sizes: "Model", saved: Path | None) -> None:
    """Print a target with a mesh on it, figure by figure."""
    from stripectl.reporters.terminal import topology
    from stripectl.reporters.terminal.screen import console
    from stripectl.util.units import NOTHING, in_unit, rate

    screen, known, machine = console(), wired.target, wired.target.hardware
    for line in topology.topology_header(known, here):
        screen.print(line, markup=False)
    for name, value in machine.figures.items():
        screen.print(f"  {name:34}{in_unit(name, value):>16}   {machine.sources[name]}", markup=False)
    if not machine.figures:
        screen.print("  no published figures. Try: stripectl topology --measure", markup=False)
    for line in [*topology.device_lines(known), *topology.hop_path_rows(wired)]:
        screen.print(line, markup=False)
    per_s = topology.slowest_hop_rate(wired)
    blocks = hiding_blocks(machine, sizes, per_s)
    if all(NOTHING in line for line in blocks):
        said = f"smallest block whose hop hides at {rate(per_s, 'B/s')}: n/a, because a rate of the machine is unknown."
        screen.print(f"{said} Try: stripectl topology --measure", markup=False)
    else:
        screen.print(f"smallest block whose hop hides at {rate(per_s, 'B/s')}, in rows per device", markup=False)
        for line in blocks:
            screen.print(f"  {line}", markup=False)
    if saved:
        screen.print(f"saved    {saved}; use it with --hardware {saved}", markup=False)


def hiding_blocks(machine: "Hardware", sizes: "Model", bytes_per_s: float | None) -> list[str]:
    """One line per dtype, balance of the mask, and number of query heads per key/value head: one, and the model's
    number (four where the model has as many of both)."""
    from stripectl.core.workload import DTYPE_BYTES
    from stripectl.hardware.profile import min_hiding_rows

    lines, shares = list[str](), sizes.heads // sizes.kv_heads
    for dtype, size in DTYPE_BYTES.items():
        for share, what in ((1.0, "full mask, or contiguous causal"), (0.5, "causal, striped or zigzag")):
            for group, heads in ((1, "MHA"), (shares if shares > 1 else 4, "GQA")):
                rows = bytes_per_s and min_hiding_rows(machine, dtype, size, group, share, bytes_per_s)
                said = "n/a (no published rate)" if rows is None else f"{rows:,.0f}"
                lines.append(f"{dtype:10}{what:34}{heads}, {group:2} query heads per key/value head   {said}")
    return lines
