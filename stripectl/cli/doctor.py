"""`stripectl doctor`: what works here, what is missing, and the command that mends it."""

import json
import shutil

import click

from stripectl import __version__
from stripectl.environment import cores, processor, version, warnings
from stripectl.hardware import Hardware, hardware_names
from stripectl.toolchain import TOOLCHAINS, Toolchain

JAX = "0.10"  # the series that libtpu is pinned to; see pyproject.toml


def findings() -> list[dict[str, str | None]]:
    """Every component: its name, what was found, and what to run where it is missing or does not fit."""
    jax = version("jax")
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    count = len(cores())
    return [
        {"name": "stripectl", "found": __version__, "mend": None},
        {
            "name": "jax",
            "found": jax,
            "mend": None if jax and jax.startswith(f"{JAX}.") else f"pip install 'jax=={JAX}.*'",
        },
        *map(compiler, TOOLCHAINS.values()),
        {
            "name": "xprof (profiles)",
            "found": version("xprof"),
            "mend": None if version("xprof") else "pip install xprof",
        },
        {"name": "charts", "found": version("vl-convert-python"), "mend": None},
        {"name": "chromium (tests)", "found": browser, "mend": None if browser else "sudo apt-get install chromium"},
        {
            "name": "cores",
            "found": f"{count} ({processor()})",
            "mend": None if count > 1 else "a measured CPU ring needs two cores; with one, rings are simulated",
        },
    ]


def compiler(tools: Toolchain) -> dict[str, str | None]:
    """A compiler: which targets it compiles for here, or why it does not."""
    names = [name for name in hardware_names() if Hardware.load(name).kind == tools.kind]
    found, why = version(tools.packages[0][0]), tools.missing
    targets = f"compiles for {', '.join(names)}"
    return {
        "name": f"{tools.packages[0][0]} ({tools.kind.upper()})",
        "found": f"{found}, {targets}" if not why else None,
        "mend": f"{why} ({targets})" if why else None,
    }


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="As JSON on stdout.")
def command(as_json: bool) -> int:
    """Say what is missing here, and the command that mends it.

    Exit code 3: JAX itself is missing or does not fit; the rest is optional.

    \b
    Examples:
      stripectl doctor
      stripectl doctor --json
    """
    found = findings()
    if as_json:
        click.echo(json.dumps({"components": found, "warnings": warnings()}, indent=1))
    else:
        for each in found:
            mend = f"   mend: {each['mend']}" if each["mend"] else ""
            click.echo(f"{each['name']:26}{each['found'] or 'n/a'}{mend}")
        for warning in warnings():
            click.echo(f"warning: {warning}")
    return 3 if any(each["name"] == "jax" and each["mend"] for each in found) else 0
