"""`stripectl list`: all names that other commands take."""

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from stripectl.core.model import Model
    from stripectl.core.scheme import Scheme
    from stripectl.hardware.profile import Hardware

KINDS = ("schemes", "layouts", "kernels", "recurrences", "hardware", "models", "targets")


@click.command("list")
@click.argument("kind", type=click.Choice(KINDS), required=False)
def command(kind: str | None) -> None:
    """List all schemes, layouts, kernels, recurrences, hardware, models and targets.

    Without a kind, targets have one line per hardware; with it, one line per size that is sold. Other sizes that whole
    hosts can form are targets too (v5e:1x8, v5p:2x2x6), and so are several slices of one kind (2*v5e:4x4).

    \b
    Examples:
      stripectl list
      stripectl list schemes
      stripectl list targets | grep v5p
    """
    from stripectl.reporters.terminal.screen import console

    screen = console()
    for each in [kind] if kind else KINDS:
        screen.print(f"[bold]{each}[/bold]")
        shown = every_target() if kind == "targets" else listed_rows(each)
        width = max(len(name) for name, _ in shown) + 2
        for name, text in shown:
            screen.print(f"  {name:{width}}{text}", markup=False)


def listed_rows(kind: str) -> list[tuple[str, str]]:
    """(name, description) of everything of a kind; a plug-in that cannot be loaded has its reason as description."""
    from stripectl.core.plan import kernels, layouts, schemes
    from stripectl.core.recurrence import recurrences
    from stripectl.hardware.profile import Hardware, hardware_names
    from stripectl.models.model_files import load_model
    from stripectl.util.files import profile_names

    if kind == "hardware":
        return [(name, hardware_summary(Hardware.load(name)) + origin("hardware", name)) for name in hardware_names()]
    if kind == "models":
        names = profile_names("models")
        return [(name, model_summary(load_model(name)) + origin("models", name)) for name in names]
    if kind == "targets":
        return [(name, target_sizes(Hardware.load(name))) for name in hardware_names()]
    every = {"schemes": schemes, "layouts": layouts, "kernels": kernels, "recurrences": recurrences}
    catalogue = every[kind]
    good, broken = catalogue.load()
    found = {name: [f"{catalogue.summary(name)} {each.paper}"] for name, each in good.items()}
    if kind == "schemes":
        found = {name: [*lines, *scheme_summary(schemes[name])] for name, lines in found.items()}
    if kind == "kernels":
        missing = {name: why for name in found if (why := kernels[name].why_missing())}
        found |= {name: [*found[name], str(why)] for name, why in missing.items()}
    found |= {name: [f"cannot be loaded: {why}"] for name, why in broken.items()}
    return [(name if line == lines[0] else "", line) for name, lines in sorted(found.items()) for line in lines]


def origin(part: str, name: str) -> str:
    """The package that a profile comes from, in brackets; empty for the profiles of stripectl."""
    from stripectl.util.files import profile_origin

    return f" (from {package})" if (package := profile_origin(part, name)) else ""


def scheme_summary(scheme: "Scheme") -> list[str]:
    """The capabilities of a scheme, in two lines."""
    from stripectl.core.capabilities import capabilities

    known = {name: f"{name}: {', '.join(words) or 'none'}" for name, words in capabilities(scheme).items()}
    lines = ("axes", "layouts", "kernels"), ("masks", "passes", "methods")
    return ["; ".join(known[name] for name in names) for names in lines]


def hardware_summary(hardware: "Hardware") -> str:
    """The main figures of a machine, and the machine whose tables it takes."""
    from stripectl.util.files import profile_names
    from stripectl.util.units import nbytes, rate

    peak, memory, link = (
        hardware.figure(name) for name in ("matmul_flops_per_s_bfloat16", "hbm_bytes", "link_bytes_per_s_one_way")
    )
    tables = f"tables of {hardware.tables_of}" if hardware.tables_of in profile_names("kernels") else "no tables"
    figures = f"{rate(peak, 'FLOP/s')} bfloat16, {nbytes(memory)}, link {rate(link, 'B/s')} one way"
    return f"{hardware.kind}: {figures}, {tables}"


def target_sizes(hardware: "Hardware") -> str:
    """The sizes in which a hardware exists, in one line."""
    from stripectl.hardware.profile import format_shape
    from stripectl.hardware.target import Target

    name = hardware.name
    if hardware.kind == "cpu":
        return f"{name}:N, N single-thread processes on this machine"
    if hardware.torus_dims and not hardware.slices:
        return unsold_sizes(hardware)
    if not hardware.slices:
        node = hardware.devices_per_host
        return f"{name}:1 to {name}:{node} are in one node; 2*{name}:{node} is two nodes"
    first, last = (Target(hardware, hardware.slices[end]) for end in (0, -1))
    return (
        f"{first} ({first.cloud_name}) to {last} ({last.cloud_name}): {len(hardware.slices)} sizes sold, and any size "
        f"of whole {format_shape(hardware.host)} hosts; 2*{last} is two slices"
    )


def unsold_sizes(hardware: "Hardware") -> str:
    """The sizes of a torus of which it is not known which are sold, in one line."""
    from stripectl.hardware.profile import format_shape

    largest, host = f"{hardware.name}:{format_shape(hardware.pod)}", format_shape(hardware.host)
    return f"{largest} and smaller sizes of whole {host} hosts; it is not known which are sold"


def every_target() -> list[tuple[str, str]]:
    """Machines of any size first, then (cloud name, target, devices, hosts, wrap-around) of every size that is sold."""
    from stripectl.hardware.profile import Hardware, hardware_names
    from stripectl.hardware.target import Target
    from stripectl.reporters.terminal.topology import wrap_text

    found, others = list[tuple[str, str]](), list[tuple[str, str]]()
    for hardware in map(Hardware.load, hardware_names()):
        for target in (Target(hardware, shape) for shape in hardware.slices):
            text = f"{target!s:18}{target.devices:6} devices {target.hosts:5} hosts   wraps around: {wrap_text(target)}"
            found.append((target.cloud_name or "", text))
        if not hardware.slices:
            others.append((hardware.name, target_sizes(hardware)))
    return [*others, *found]


def model_summary(shape: "Model") -> str:
    from stripectl.core.layer_kinds import masks_of_layers, masks_text
    from stripectl.core.replacement import replacements_text
    from stripectl.results.labels import attention_label, heads_label

    parts = replacements_text(shape.replaced)
    none = shape.architecture.no_feed_forward
    feed_forward = "no feed-forward" if none else f"feed-forward {shape.feed_forward}"
    replaced = f"; not computed (and the replacement): {parts}" if parts else ""
    masks = masks_of_layers(shape.layer_masks, shape.layers) if shape.layer_masks else []
    windows = f", {masks_text(masks)}" if masks else ""
    return attention_label(shape) + (
        f"{shape.layers} layers of {shape.hidden}, {heads_label(shape)}, "
        f"{feed_forward}, vocabulary {shape.vocabulary}{windows}{replaced}"
    )
