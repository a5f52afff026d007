"""`stripectl list`: what there is to name."""

import click

KINDS = ("schemes", "layouts", "kernels", "hardware", "models")


@click.command("list")
@click.argument("kind", type=click.Choice(KINDS), required=False)
def command(kind: str | None) -> None:
    """List what there is: schemes, layouts, kernels, hardware, models.

    \b
    Examples:
      stripectl list
      stripectl list schemes
    """
    from stripectl.console import console

    screen = console()
    for each in [kind] if kind else KINDS:
        screen.print(f"[bold]{each}[/bold]")
        for name, text in rows(each):
            screen.print(f"  {name:14}{text}", markup=False)


def rows(kind: str) -> list[tuple[str, str]]:
    """(name, what it is) of every one of a kind; a plug-in that cannot be loaded says why."""
    from stripectl.files import profile_names
    from stripectl.hardware import Hardware, hardware_names
    from stripectl.plan import kernels, layouts, schemes
    from stripectl.workload import Model

    if kind == "hardware":
        return [(name, machine(Hardware.load(name))) for name in hardware_names()]
    if kind == "models":
        return [(name, model(Model.load(name))) for name in profile_names("models")]
    catalogue = {"schemes": schemes, "layouts": layouts, "kernels": kernels}[kind]
    good, broken = catalogue.load()
    found = [(name, f"{catalogue.summary(name)} {each.paper}") for name, each in good.items()]
    return sorted([*found, *((name, f"cannot be loaded: {why}") for name, why in broken.items())])


def machine(hardware) -> str:
    from stripectl.console import nbytes, rate

    peak, memory, link = (
        hardware.figure(name) for name in ("matmul_flops_per_s_bfloat16", "hbm_bytes", "link_bytes_per_s_one_way")
    )
    return f"{hardware.kind}: {rate(peak, 'FLOP/s')} bfloat16, {nbytes(memory)}, link {rate(link, 'B/s')} one way"


def model(sizes) -> str:
    shared = "" if sizes.kv_heads == sizes.heads else f" ({sizes.kv_heads} kv)"
    return (
        f"{sizes.layers} layers of {sizes.hidden}, {sizes.heads} heads{shared} of {sizes.head_dim}, "
        f"feed-forward {sizes.feed_forward}, vocabulary {sizes.vocabulary}"
    )
