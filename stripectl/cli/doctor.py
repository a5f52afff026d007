"""`stripectl doctor`: what works here, what is missing, and the command that mends it."""

import json
import shutil

import click

from stripectl import __version__
from stripectl.environment import cores, processor, version, warnings

JAX = "0.10"  # the series that libtpu is pinned to; see pyproject.toml


def findings() -> list[dict[str, str | None]]:
    """Every component: its name, what was found, and what to run where it is missing or does not fit."""
    jax, libtpu = version("jax"), version("libtpu")
    cuda = version("jax-cuda13-plugin") or version("jax-cuda12-plugin")
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    count = len(cores())
    return [
        {"name": "stripectl", "found": __version__, "mend": None},
        {
            "name": "jax",
            "found": jax,
            "mend": None if jax and jax.startswith(f"{JAX}.") else f"pip install 'jax=={JAX}.*'",
        },
        {"name": "libtpu (TPU)", "found": libtpu, "mend": None if libtpu else "pip install 'stripectl[tpu]'"},
        {"name": "jax-cuda (GPU)", "found": cuda, "mend": None if cuda else "pip install 'stripectl[cuda]'"},
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
            click.echo(f"{each['name']:18}{each['found'] or 'n/a'}{mend}")
        for warning in warnings():
            click.echo(f"warning: {warning}")
    return 3 if any(each["name"] == "jax" and each["mend"] for each in found) else 0
