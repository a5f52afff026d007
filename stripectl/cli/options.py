"""The options that commands share."""

import os

import click

from stripectl.cli.headings import OptionGroup
from stripectl.cli.paths import PATH
from stripectl.results.schema import MAX_HOSTS, MAX_SAMPLES
from stripectl.runner.options import (
    DEFAULT_BATCH,
    DEFAULT_BUDGET,
    DEFAULT_COMPILE_TIMEOUT,
    DEFAULT_LEN,
    DEFAULT_MASK,
    DEFAULT_MIN_SAMPLES,
    DEFAULT_WARMUP,
    RequestOptions,
)
from stripectl.util.plug_in_errors import DEBUG

DEFAULT = RequestOptions()


def show_tracebacks(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    """Have this process and its workers show tracebacks until the command ends."""
    if wanted and DEBUG not in os.environ:
        os.environ[DEBUG] = "1"
        context.call_on_close(lambda: os.environ.pop(DEBUG, None))


WORKLOAD = OptionGroup(
    "Workload",
    (
        click.option(
            "--seqlen",
            metavar="LEN",
            help="Tokens of the whole sequence: 262144, 256k, 16k,64k or 16k..1M; max finds the longest that fits. "
            f"[default: {DEFAULT_LEN}]",
        ),
        click.option(
            "--model",
            metavar="NAME|FILE",
            help="Model that gives the shape: 1b (default), 3b, 7b ... (stripectl list models), a YAML file, or a "
            "Hugging Face config.json or its folder.",
        ),
        click.option(
            "--query-len",
            metavar="LEN",
            help="Number of new queries for inference, comma-separated; 1 is decoding. --seqlen then counts all keys.",
        ),
        click.option("--heads", type=int, help="Query heads, instead of the model's."),
        click.option("--kv-heads", type=int, help="Key/value heads. [default: the model's, or with --heads as many]"),
        click.option(
            "--key-heads",
            type=int,
            help="Heads of queries and keys that heads of values share in a recurrence. [default: as many]",
        ),
        click.option("--head-dim", type=int, help="Size of a head, in elements."),
        click.option("--v-head-dim", type=int, help="Size of a head of values and the output. [default: --head-dim]"),
        click.option("--batch", type=int, help=f"Sequences per batch. [default: {DEFAULT_BATCH}]"),
        click.option("--dtype", help="bfloat16 or float32. [default: bfloat16; float32 on CPU]"),
        click.option(
            "--mask",
            help=f"Comma-separated masks: causal, full, or sliding:4k for 4k keys per query. [default: {DEFAULT_MASK}]",
        ),
        click.option(
            "--attention",
            help="softmax, linear, or for --pass step a pattern with one letter per layer: LLLS. [default: the "
            "model's]",
        ),
        click.option(
            "--recurrence",
            help="Recurrence of linear attention: mamba2, gla, deltanet, gdn, kda, or decay. [default: the model's, "
            "decay]",
        ),
        click.option(
            "--decay",
            help="Decay per token of linear attention: 0.99, or per-head for TransNormerLLM's. [default: the model's]",
        ),
        click.option(
            "--feature-map",
            help="Feature map of linear attention: none, or elu for 1 + elu. [default: the model's, none]",
        ),
        click.option(
            "--documents",
            metavar="LENS",
            help="Pack the sequence with documents of these lengths, repeated in order: 4k,1k,16k.",
        ),
        click.option(
            "--pass",
            "pass_",
            help="forward, forward-backward, or step (the model's whole training step). [default: the first two]",
        ),
        click.option("--layers", type=click.IntRange(1), help="Layers of a training step, instead of the model's."),
    ),
)
PLAN = OptionGroup(
    "Plans",
    (
        click.option(
            "--plan",
            multiple=True,
            metavar="PLAN",
            help="A whole plan: ring/striped/xla@ring=8,tile=1024. May be repeated.",
        ),
        click.option(
            "--scheme",
            help="Comma-separated schemes, or all: with --query-len the schemes for inference. [default: ring; with "
            "--query-len all]",
        ),
        click.option("--layout", help="Comma-separated layouts, or all. [default: all; of a --plan the scheme's own]"),
        click.option(
            "--kernel",
            help="Comma-separated kernels, or all. [default: splash or pallas_tpu on TPUs, cudnn on GPUs, xla "
            "elsewhere]",
        ),
        click.option(
            "--tile",
            help="Comma-separated tiles: 1024, 2048x4096 (queries x keys), 2048x4096x512 (keys at once), or all. "
            "[default: for each pass the fastest of the machine's table]",
        ),
        click.option("--unroll", help="Comma-separated numbers of rounds to unroll in the ring's loop. [default: 1]"),
        click.option(
            "--mesh",
            multiple=True,
            metavar="MESH",
            help="ring=4,tensor=2 (may be repeated), or auto for every mesh. [default: all devices on the scheme's "
            "axes]",
        ),
    ),
)
TARGET = OptionGroup(
    "Machine",
    (
        click.option(
            "--target",
            default=DEFAULT.target,
            show_default=True,
            help="Machine that the plans are for: local, cpu:2, h100:8, v5e:4x4, v4-32, 2*v5e:4x4 ...",
        ),
        click.option("--hardware", metavar="FILE", help="Hardware profile to use in place of the target's own."),
    ),
)
FLAGS = OptionGroup(
    "Compiler",
    (
        click.option(
            "--xla-flag",
            multiple=True,
            metavar="NAME=VALUE[,VALUE]",
            help="Compiler flag with the values to try. May be repeated.",
        ),
    ),
)
EFFORT = OptionGroup(
    "Method and effort",
    (
        click.option(
            "--method",
            type=click.Choice(["auto", "measured", "compiled", "simulated"]),
            default=DEFAULT.method,
            show_default=True,
            help="How numbers are obtained; auto takes the strongest method that fits the budget.",
        ),
        *FLAGS.options,
        click.option(
            "--compile-timeout", help=f"Time limit for compiling one plan. [default: {DEFAULT_COMPILE_TIMEOUT}]"
        ),
        click.option("--cache/--no-cache", default=None, help="Use compilations that are on disk. [default: --cache]"),
        click.option("--time-budget", help=f"Time for all measurements: 90s, 3m, 1h. [default: {DEFAULT_BUDGET}]"),
        click.option(
            "--min-samples",
            type=click.IntRange(1, MAX_SAMPLES),
            help=f"Minimum number of samples per plan. [default: {DEFAULT_MIN_SAMPLES}]",
        ),
        click.option(
            "--warmup",
            type=click.IntRange(1),
            help=f"Warm-up runs per plan before sampling starts. [default: {DEFAULT_WARMUP}]",
        ),
    ),
)
HOSTS = OptionGroup(
    "Several hosts",
    (
        click.option(
            "--coordinator",
            metavar="ADDRESS:PORT",
            help="Address of host 0. All hosts need the same STRIPECTL_TOKEN or STRIPECTL_TOKEN_FILE. "
            "[default: the cluster's]",
        ),
        click.option(
            "--num-processes",
            type=click.IntRange(1, MAX_HOSTS),
            help="Number of hosts that run this command. [default: the cluster's]",
        ),
        click.option(
            "--process-id", type=click.IntRange(0), help="Number of this host, from 0. [default: the cluster's]"
        ),
        click.option(
            "--cluster",
            metavar="ray|ray://HOST:PORT",
            help="Run on the nodes of a Ray cluster, from this command alone: on a TPU slice, else on all nodes with "
            "GPUs, else on all nodes; --num-processes limits their number.",
        ),
    ),
)
OUTPUT = OptionGroup(
    "Output",
    (
        click.option(
            "-o",
            "--output",
            type=PATH,
            help="Folder for run.json and report. [default: stripectl-runs/ID]",
        ),
        click.option(
            "--history",
            type=PATH,
            metavar="DIR",
            envvar="STRIPECTL_HISTORY",
            show_envvar=True,
            help="Also add the run to the history in this folder.",
        ),
        click.option(
            "--json", "as_json", is_flag=True, help="Print the run as JSON on stdout, and nothing else there."
        ),
        click.option("--all-plans", is_flag=True, help="Show every plan, not only the best one of each scheme."),
        click.option("--wide", is_flag=True, help="Show every column, even on a narrow screen."),
        click.option("--quiet", is_flag=True, help="Show no progress."),
        click.option(
            "--verbose",
            is_flag=True,
            expose_value=False,
            callback=show_tracebacks,
            help=f"Show the tracebacks of plug-ins and workers, and all that workers print; as {DEBUG}=1.",
        ),
    ),
)
