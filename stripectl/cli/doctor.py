"""`stripectl doctor`: the components that work here, and the command that installs or fixes each of the others."""

import json
import platform
import shutil
from typing import NamedTuple

import click

from stripectl.compat import TESTED
from stripectl.compile.toolchain import TOOLCHAINS, Toolchain, requirement, topology_arguments, why_not_described
from stripectl.errors import StripectlError
from stripectl.hardware.profile import Hardware, hardware_names
from stripectl.hardware.target import parse_target
from stripectl.reporters.terminal.screen import ProgressDisplay
from stripectl.results.environment import VERSION, cores, processor, version, warnings
from stripectl.util.progress import Say
from stripectl.workers.worker_group import WorkerGroup

PROBE_TIMEOUT_S = 120.0  # of a probe in its own process


class ComponentFinding(NamedTuple):
    """A component: its name, the finding, and the problem together with its remedy."""

    name: str
    found: str | None
    mend: str | None = None


def component_findings(say: Say) -> list[ComponentFinding]:
    """All components. JAX and the compilers are tested in their own processes."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    count = len(cores())
    one = "a measured CPU ring needs two cores; with one, rings are simulated"
    steps = 1 + len(TOOLCHAINS)
    say("try JAX", 0, steps)
    found = [ComponentFinding("stripectl", VERSION), *jax_findings()]
    for done, tools in enumerate(TOOLCHAINS.values(), 1):
        say(f"compile a program for {tools.target}", done, steps)
        found.append(compiler(tools))
    return [
        *found,
        ComponentFinding("xprof (profiles)", version("xprof"), None if version("xprof") else "pip install xprof"),
        ComponentFinding("charts", version("vl-convert-python")),
        ComponentFinding("chromium (tests)", browser, None if browser else "sudo apt-get install chromium"),
        ComponentFinding("cores", f"{count} ({processor()})", None if count > 1 else one),
    ]


def jax_findings() -> list[ComponentFinding]:
    """JAX, whether stripectl was tested with this version, its devices, and each private name that stripectl uses."""
    jax, wanted = version("jax"), requirement("jax", "stripectl", "")
    if jax is None or (wanted and not wanted.specifier.contains(jax, prereleases=True)):
        return [ComponentFinding("jax", jax, f"pip install '{wanted or 'jax'}'")]
    try:
        with WorkerGroup(session="probe") as child:
            devices, private = child.ask("probe", PROBE_TIMEOUT_S)[0]
    except StripectlError as failure:
        return [ComponentFinding("jax", jax, f"JAX cannot be used: {failure}")]
    parts = [
        ComponentFinding(f"{part} (private)", None if why else "as expected", why) for part, why in private.items()
    ]
    kinds = ", ".join(f"{count} {kind}" for kind, count in devices.items())
    return [ComponentFinding("jax", f"{jax}, {combination(jax)}"), ComponentFinding("devices", kinds), *parts]


def combination(jax: str) -> str:
    """Whether stripectl was tested with this Python, JAX and libtpu, and if not, the tested combinations."""
    here = [platform.python_version().rpartition(".")[0], jax, version("libtpu")]
    if any(all(mine in (None, theirs) for mine, theirs in zip(here, known, strict=True)) for known in TESTED):
        return "tested with this Python" + (f" and libtpu {here[2]}" if here[2] else "")
    known = "; ".join(f"{jax} with Python {python} and libtpu {libtpu}" for python, jax, libtpu in TESTED)
    return f"not tested with Python {here[0]} and libtpu {here[2] or 'n/a'} (tested: {known})"


def compiler(tools: Toolchain) -> ComponentFinding:
    """A compiler: the targets for which it compiles here, or the reason why it does not."""
    package = tools.packages[0][0]
    name, names = f"{package} ({tools.kind.upper()})", hardware_names()
    known = (each for each in map(Hardware.load, names) if each.kind == tools.kind and not why_not_described(each))
    targets = f"compiles for {', '.join(each.name for each in known)}"
    why = tools.missing or failure_of(tools)
    return (
        ComponentFinding(name, None, f"{why} ({targets})")
        if why
        else ComponentFinding(name, f"{version(package)}, {targets}")
    )


def failure_of(tools: Toolchain) -> str | None:
    """Why an installed compiler does not compile one line, or None."""
    topology = topology_arguments(parse_target(tools.target)) | {"order": [0]}
    try:
        with WorkerGroup(session="compile", variables=tools.environment) as child:
            child.ask("probe", PROBE_TIMEOUT_S, topology=topology)
    except StripectlError as failure:
        return f"it does not compile one line for {tools.target}: {failure}. Run: {tools.remedy}"
    return None


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="Print JSON on stdout.")
def command(as_json: bool) -> int:
    """Show which components work here, and the command that installs or fixes each of the others.

    JAX and the compilers are tested in their own processes, which takes some seconds. Exit code 3: JAX itself is
    missing or has an unsupported version; everything else is optional.

    \b
    Examples:
      stripectl doctor
      stripectl doctor --json
    """
    with ProgressDisplay(quiet=as_json) as reporter:
        found = component_findings(reporter.say)
    if as_json:
        components = [each._asdict() for each in found]
        click.echo(json.dumps({"components": components, "warnings": warnings()}, indent=1))
    else:
        width = max(len(each.name) for each in found) + 2
        for each in found:
            mend = f"   mend: {each.mend}" if each.mend else ""
            click.echo(f"{each.name:{width}}{each.found or 'n/a'}{mend}")
        for warning in warnings():
            click.echo(f"warning: {warning}")
    return 3 if any(each.name == "jax" and each.mend for each in found) else 0
