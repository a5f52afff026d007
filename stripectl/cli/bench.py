"""`stripectl bench`: time plans side by side."""

import json
import shlex
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from stripectl import BadInput, StripectlError
from stripectl.cli import options as shared


@click.command("bench")
@shared.options(shared.WORKLOAD, shared.PLAN, shared.TARGET, shared.EFFORT, shared.OUTPUT)
@click.option("--resume", is_flag=True, help="Go on with the run in --out: what it holds is not done again.")
@click.option("--dry-run", is_flag=True, help="Show plans and refusals; run nothing.")
def command(**given: Any) -> int:
    """Time plans side by side.

    Without devices to make a ring of, tiles are timed here, the ring of 8 is simulated from them, and the ring that
    this machine can run is measured beside its own simulation.

    \b
    Examples:
      stripectl bench --seqlen 256k
      stripectl bench --seqlen 16k..256k --scheme all --pass forward
      stripectl bench --target cpu:2 --seqlen 16k --heads 4 --head-dim 64 --tile 512
      stripectl bench --target v5p:2x2x4 --plan ring/striped/xla@ring=16,tile=1024
    """
    from stripectl.bench import Request, bench, dry_run
    from stripectl.console import Reporter, console
    from stripectl.launch import interruptible
    from stripectl.sampling import Effort

    request = parse_request(given, Request, Effort)
    with Reporter(given["quiet"]) as reporter:
        if given["dry_run"]:
            return show_dry_run(dry_run(request, reporter.say), given["budget"])
    run, folder = open_run(given)
    request = replace(request, done=tuple(run.measurements))
    screen = console(stderr=given["as_json"])
    stopped: BaseException | None = None
    try:
        with interruptible(), Reporter(given["quiet"]) as reporter:
            for measurement in bench(request, reporter.say, run.environment["devices"]):
                run.measurements.append(measurement)
                run.save(folder)
    except (KeyboardInterrupt, StripectlError) as error:
        stopped = error
    if run.measurements or stopped is None:
        finish(run, folder, screen, given["as_json"])
    if stopped is not None:
        raise stopped
    return exit_code(run, explicit=bool(given["plans"]))


def open_run(given: dict[str, Any]) -> tuple[Any, Path]:
    """A new run and the folder for it, or with --resume the run to go on with."""
    from stripectl.environment import environment
    from stripectl.files import ensure_writable
    from stripectl.run import Run, newest_run

    if given["resume"]:
        folder: Path = given["out"] or newest_run(shared.RUNS).parent
        ensure_writable(folder)
        run = Run.load(folder)
        run.measurements = [m for m in run.measurements if m.status != "failed"]  # what failed is tried again
        return run, folder
    now = datetime.now(UTC)
    identity = now.strftime("%Y%m%d-%H%M%S")
    command_line = shlex.join(["stripectl", *sys.argv[1:]])
    run = Run(identity, now.isoformat(timespec="seconds"), command_line, environment([]))
    folder = given["out"] or unused(shared.RUNS / identity)
    if (folder / "run.json").exists():
        raise BadInput(f"{folder} holds a run. Go on with it by --resume, or choose another --out.")
    ensure_writable(folder)
    return run, folder


def finish(run: Any, folder: Path, screen: Any, as_json: bool) -> None:
    """The table, the report, and where they lie."""
    from stripectl.console import calibrations, longest, tables
    from stripectl.report import write_report

    if not run.environment["devices"]:  # nothing was timed, so nothing was disturbed
        run.environment["warnings"] = []
    run.save(folder)
    if as_json:
        click.echo(json.dumps(run.to_json(), indent=1))
    for part in [*tables(run, screen.width), *longest(run.measurements), *calibrations(run)]:
        screen.print(part)
    for warning in run.environment["warnings"]:
        screen.print(f"warning {warning}", markup=False)
    write_report(run, folder / "report.html")
    screen.print(f"run     {folder / 'run.json'}\nreport  {folder / 'report.html'}", markup=False)


def show_dry_run(cases: list[Any], budget: str) -> int:
    """What would run, on stdout."""
    from stripectl.console import describe

    title = ""
    for case in cases:
        if title != (title := describe(case.workload)):
            click.echo(title)
        click.echo(
            f"  {case.workload.passes:17} {case.plan}  {case.target}"
            + (f"  refused: {case.reason}" if case.reason else "")
        )
    refused = sum(case.status == "refused" for case in cases)
    click.echo(f"{len(cases) - refused} to run, {refused} refused; sampling takes at most {budget} (--budget).")
    return 2 if refused == len(cases) else 0


def parse_request(given: dict[str, Any], request: Any, effort: Any) -> Any:
    shape = shared.parse_shape(given["model"], given["heads"], given["kv_heads"], given["head_dim"])
    longest = given["seqlen"].strip() == "max"
    workloads = shared.parse_workloads(
        given["dtype"] or "bfloat16",
        seqlen="1" if longest else given["seqlen"],
        shape=shape,
        batch=given["batch"],
        mask=given["mask"],
        passes=given["passes"],
    )
    names = ("scheme", "layout", "kernel", "tile", "unroll", "meshes")
    return request(
        workloads=workloads,
        plans=shared.parse_plans(
            given["plans"], **{name: given[name] for name in names} | {"kernel": given["kernel"] or "xla"}
        ),
        any_kernel=given["kernel"] is None and not given["plans"],
        target=given["target"],
        hardware=shared.parse_hardware(given["hardware"]),
        method=given["method"],
        any_dtype=given["dtype"] is None,
        flags=shared.parse_flags(given["xla_flags"]),
        longest=longest,
        cached=given["cache"],
        effort=effort(
            shared.parse_duration(given["budget"]),
            given["min_samples"],
            given["warmup"],
            shared.parse_duration(given["compile_limit"]),
        ),
    )


def unused(folder: Path) -> Path:
    """The folder, or the first of folder-2, folder-3 ... that is not there."""
    candidates = (folder.with_name(f"{folder.name}-{n}") if n > 1 else folder for n in range(1, 10**6))
    return next(candidate for candidate in candidates if not candidate.exists())


def exit_code(run: Any, explicit: bool) -> int:
    """4: wrong numbers; 1: a plan failed; 2: a plan that was named was refused, or all were; 0: done."""
    from stripectl.sampling import WRONG_NUMBERS

    failed = [m for m in run.measurements if m.status == "failed"]
    if any((m.reason or "").startswith(WRONG_NUMBERS) for m in failed):
        return 4
    if failed:
        return 1
    refused = [m.status == "refused" for m in run.measurements]
    return 2 if all(refused) or (explicit and any(refused)) else 0
