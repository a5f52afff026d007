"""The options that commands share."""

import functools
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from stripectl.results.schema import MOST_SAMPLES

RUNS = Path("stripectl-runs")
DEFAULT_LEN = "256k"

WORKLOAD = (
    click.option(
        "--seqlen",
        metavar="LEN",
        default=DEFAULT_LEN,
        show_default=True,
        help="Tokens of the whole sequence: 262144, 256k, 16k,64k or 16k..1M; max: the longest that fits.",
    ),
    click.option(
        "--model", metavar="NAME|FILE", help="Shape by a model: 1b (default), 3b, 7b, llama3-8b or a YAML file."
    ),
    click.option("--query-len", metavar="LEN", help="New queries behind a cached prefix, by commas: 1 decodes."),
    click.option("--kv-len", metavar="LEN", help="Keys in the cache with the new ones; another name of --seqlen."),
    click.option("--heads", type=int, help="Query heads, in place of the model's."),
    click.option("--kv-heads", type=int, help="Key/value heads. [default: as many as heads]"),
    click.option("--head-dim", type=int, help="Size of a head."),
    click.option("--batch", type=int, default=1, show_default=True, help="Sequences."),
    click.option("--dtype", help="bfloat16 or float32. [default: bfloat16; float32 on CPU]"),
    click.option(
        "--mask",
        default="causal",
        show_default=True,
        help="causal, full, or sliding:4k: so many keys a query; by commas.",
    ),
    click.option(
        "--attention",
        help="softmax, linear, or of a step a letter a layer: LLLS. [default: the model's; linear with lasp, lasp2]",
    ),
    click.option(
        "--decay",
        help="What a token leaves of linear attention's state: 0.99, or tnl: TransNormerLLM's. [default: model's, 1]",
    ),
    click.option(
        "--features",
        help="Map of linear attention's queries and keys: none, or elu: 1 + elu. [default: the model's, none]",
    ),
    click.option(
        "--documents", metavar="LENS", help="Pack documents of these lengths, in turn, in the sequence: 4k,1k,16k."
    ),
    click.option(
        "--pass", "passes", help="forward, forward-backward (default: both), step: the model's whole training step."
    ),
    click.option("--layers", type=click.IntRange(1), help="Layers of a step's model, in place of its own."),
)
PLAN = (
    click.option(
        "--plan", "plans", multiple=True, metavar="PLAN", help="ring/striped/xla@ring=8,tile=1024; repeat it."
    ),
    click.option(
        "--scheme",
        help="Schemes by commas, or all: those of training, with --query-len of inference. [default: ring; there all]",
    ),
    click.option("--layout", default="all", show_default=True, help="Layouts by commas, or all."),
    click.option("--kernel", help="Kernels by commas, or all. [default: splash on TPUs, xla elsewhere]"),
    click.option(
        "--tile",
        help="Tiles by commas: 1024 or 2048x4096 (queries x keys); all: simulate every one. [default: the kernel's]",
    ),
    click.option("--unroll", default="1", show_default=True, help="Rounds unrolled in the ring's loop, by commas."),
    click.option(
        "--mesh",
        "meshes",
        multiple=True,
        metavar="MESH",
        help="ring=4,tensor=2; repeat it; auto: every mesh of the devices. [default: all devices on the scheme's axes]",
    ),
)
TARGET = (
    click.option(
        "--target", default="local", show_default=True, help="local, cpu:2, h100:8, v5e:4x4, v4-32, 2*v5e:4x4 ..."
    ),
    click.option("--hardware", metavar="FILE", help="Hardware profile to use in place of the target's own."),
)
FLAGS = (
    click.option(
        "--xla-flag",
        "xla_flags",
        multiple=True,
        metavar="NAME=VALUE[,VALUE]",
        help="Flag of the compiler, every value of it; repeat it.",
    ),
)
EFFORT = (
    click.option(
        "--method",
        type=click.Choice(["auto", "measured", "compiled", "simulated"]),
        default="auto",
        show_default=True,
        help="How numbers are obtained; auto takes the strongest that fits the budget.",
    ),
    *FLAGS,
    click.option("--compile-limit", default="10m", show_default=True, help="Time for compiling one plan."),
    click.option("--cache/--no-cache", default=True, help="Take what was compiled before from the disk (the default)."),
    click.option("--budget", default="3m", show_default=True, help="Time for measuring: 90s, 3m, 1h."),
    click.option(
        "--min-samples",
        type=click.IntRange(1, MOST_SAMPLES),
        default=5,
        show_default=True,
        help="Fewest samples a plan.",
    ),
    click.option(
        "--warmup", type=click.IntRange(1), default=1, show_default=True, help="Runs a plan before samples count."
    ),
)
HOSTS = (
    click.option("--coordinator", metavar="ADDRESS:PORT", help="Where host 0 listens. [default: the cluster's]"),
    click.option("--hosts", type=click.IntRange(1), help="How many hosts run this command. [default: the cluster's]"),
    click.option("--host", type=click.IntRange(0), help="Which of them this is, from 0. [default: the cluster's]"),
)
OUTPUT = (
    click.option(
        "--out", type=click.Path(path_type=Path), help="Folder for run.json and report. [default: stripectl-runs/ID]"
    ),
    click.option(
        "--history",
        type=click.Path(path_type=Path),
        metavar="DIR",
        envvar="STRIPECTL_HISTORY",
        show_envvar=True,
        help="Also keep the run in the history in this folder.",
    ),
    click.option("--json", "as_json", is_flag=True, help="The run as JSON on stdout, and nothing else there."),
    click.option("--quiet", is_flag=True, help="No progress."),
)


def options(*groups: Sequence[Callable[..., Any]]) -> Callable[..., Any]:
    """A decorator that adds groups of options, in the order given."""
    return lambda command: functools.reduce(
        lambda made, option: option(made), reversed(list(itertools.chain(*groups))), command
    )
