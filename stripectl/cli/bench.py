"""`stripectl bench`: time plans side by side."""

from pathlib import Path
from typing import Any

import click

from stripectl.cli import headings, options, session
from stripectl.cli.command_options import OutputOptions
from stripectl.cli.multihost import cluster_here, on_every_host
from stripectl.cli.paths import PATH
from stripectl.cli.suite import suite_runs


@click.command("bench", cls=headings.CommandWithHeadings)
@click.argument("suite", required=False, type=PATH)
@headings.options(options.WORKLOAD, options.PLAN, options.TARGET, options.EFFORT, options.HOSTS, options.OUTPUT)
@click.option("--refine", type=click.IntRange(1), help="Plans of --mesh auto to compile or measure. [default: 4]")
@click.option("--profile", is_flag=True, help="Also capture an XLA profile of every measured plan, and analyse it.")
@click.option("--resume", is_flag=True, help="Continue the run in --output, without repeating its results.")
@click.option("--dry-run", is_flag=True, help="Show plans and refusals, and run nothing.")
@on_every_host
def command(suite: Path | None, dry_run: bool, profile: bool, **given: Any) -> int:
    """Time plans side by side, or the runs of a suite: a YAML file of such options.

    On a machine without a ring of devices, tiles are timed here, a ring of 8 is simulated from these times, and the
    ring that this machine can run is measured and compared with its own simulation.

    \b
    Examples:
      stripectl bench --seqlen 256k
      stripectl bench --seqlen 16k..256k --scheme all --pass forward
      stripectl bench --target cpu:2 --seqlen 16k --heads 4 --head-dim 64 --tile 512
      stripectl bench --target cpu:2 --seqlen 16k --heads 4 --head-dim 64 --profile
      stripectl bench --target v5p:2x2x4 --plan ring/striped/xla@ring=16,tile=1024
      stripectl bench --target v4:2x2x4 --model 7b --pass step --mesh auto
      stripectl bench --target v5e:4x4 --seqlen 16k,64k,256k,1M --scheme all --mesh auto
      stripectl bench --target v5e:4x4 --model llama3-8b --query-len 1 --seqlen 128k --batch 16
      stripectl bench --seqlen 64k --documents 4k,1k,16k --mask causal,sliding:4k
      stripectl bench examples/striped-attention-paper.yaml
    """
    from stripectl.reporters.terminal.screen import ProgressDisplay
    from stripectl.runner.bench import dry_run_bench
    from stripectl.runner.names import check_count
    from stripectl.runner.options import DEFAULT_BUDGET, RequestOptions
    from stripectl.runner.parse import parse_request

    asked, output = RequestOptions.of(given), OutputOptions.of(given)
    requests = [parse_request(each) for each in ([asked] if suite is None else suite_runs(suite))]
    check_count(sum(len(each.workloads) * len(each.plans) * len(each.flags) for each in requests))
    session.note_replaced_parts(workload.model for each in requests for workload in each.workloads)
    if dry_run:
        with ProgressDisplay(output.quiet) as reporter:
            found = [case for request in requests for case in dry_run_bench(request, reporter.say, cluster_here())]
            budget = asked.time_budget or DEFAULT_BUDGET
            rest = f"sampling takes at most {budget} (--time-budget)"
            if any(case.target.kind == "cpu" for case in found) and not all(p.tile for r in requests for p in r.plans):
                rest += "; a run may time other default tiles, and take them if they are faster"
            return session.show_dry_run(found, "to run", rest)
    return session.run_bench(output, requests, explicit=bool(asked.plan), profile=profile)
