"""The options that commands share, and what they mean: strings end here, workloads and plans begin."""

import functools
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from stripectl import BadInput
from stripectl.files import unknown
from stripectl.hardware import Hardware
from stripectl.layout import MASKS
from stripectl.plan import DEFAULT_KERNELS, Plan, kernels, layouts, parse_mesh, parse_plan, parse_tile, schemes
from stripectl.workload import (
    ATTENTION_PASSES,
    ATTENTIONS,
    DTYPES,
    PASSES,
    SIZES,
    STEP,
    Model,
    Workload,
    parse_length,
    parse_lengths,
    plain_mask,
)

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
        help="softmax or linear. [default: softmax; linear where a scheme of it is asked for: lasp, lasp2]",
    ),
    click.option(
        "--decay", help="What a token leaves of linear attention's state: 0.99, or tnl, TransNormerLLM's. [default: 1]"
    ),
    click.option(
        "--features", help="Map of linear attention's queries and keys: none, or elu: 1 + elu. [default: none]"
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
    click.option("--tile", help="Tiles by commas: 1024 or 2048x4096 (queries x keys). [default: the kernel's]"),
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
    click.option("--min-samples", type=click.IntRange(1), default=5, show_default=True, help="Fewest samples a plan."),
    click.option(
        "--warmup", type=click.IntRange(1), default=1, show_default=True, help="Runs a plan before samples count."
    ),
)
OUTPUT = (
    click.option(
        "--out", type=click.Path(path_type=Path), help="Folder for run.json and report. [default: stripectl-runs/ID]"
    ),
    click.option("--json", "as_json", is_flag=True, help="The run as JSON on stdout, and nothing else there."),
    click.option("--quiet", is_flag=True, help="No progress."),
)


def options(*groups: Sequence[Callable[..., Any]]) -> Callable[..., Any]:
    """A decorator that adds groups of options, in the order given."""
    return lambda command: functools.reduce(
        lambda made, option: option(made), reversed(list(itertools.chain(*groups))), command
    )


@dataclass(frozen=True)
class Shape:
    """Heads of a workload, and the model they come from."""

    model: str | None
    heads: int
    kv_heads: int
    head_dim: int


def parse_shape(model: str | None, heads: int | None, kv_heads: int | None, head_dim: int | None) -> Shape:
    """A model's heads, or those given; a model whose heads are replaced no longer lends its name."""
    named = Model.load(model or "1b")
    if heads is None and kv_heads is None and head_dim is None:
        return Shape(model or "1b", named.heads, named.kv_heads, named.head_dim)
    own = heads if heads is not None else named.heads
    shared = kv_heads if kv_heads is not None else own
    return Shape(None, own, shared, head_dim if head_dim is not None else named.head_dim)


def words(text: str, kind: str, known: Sequence[str]) -> list[str]:
    """A comma list of known names, or `all`.

    Raises:
        BadInput: a name that is not known, with the nearest ones.
    """
    names = [name.strip() for name in text.split(",")]
    if "all" in names:
        return list(known)
    for name in names:
        if name not in known:
            raise unknown(kind, name, known)
    return list(dict.fromkeys(names))


def parse_duration(text: str) -> float:
    """Seconds of `90s`, `3m`, `1h`, or a plain number.

    Raises:
        BadInput: not a duration.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", text.strip())
    if not match or float(match[1]) <= 0:
        raise BadInput(f"{text!r} is not a duration. Write 90s, 3m or 1h.")
    return float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]]


def parse_workloads(
    dtype: str,
    *,
    seqlen: str,
    shape: Shape,
    batch: int,
    mask: str,
    passes: str | None,
    layers: int | None = None,
    documents: str | None = None,
    query_len: str | None = None,
    linear: Mapping[str, str] | None = None,
) -> list[Workload]:
    """The grid of workloads, in order of dtype, mask, length, queries and pass; an inference has a forward one.

    Raises:
        BadInput: something is not known, or a step has no model.
    """
    packed = None if documents is None else tuple(map(parse_length, documents.split(",")))
    axes = (
        words(dtype, "dtype", DTYPES),
        list(MASKS) if mask.strip() == "all" else list(dict.fromkeys(map(plain_mask, mask.split(",")))),
        parse_lengths(seqlen),
        [None] if query_len is None else parse_lengths(query_len),
        words(passes, "pass", PASSES) if passes else ["forward"] if query_len else list(ATTENTION_PASSES),
    )
    steps = step_sizes(shape, layers) if STEP in axes[-1] else {}
    if layers and not steps:
        raise BadInput("--layers are those of a training step. Add --pass step.")
    return [
        Workload(
            **{**vars(shape), "batch": batch, "documents": packed, **(steps if each_pass == STEP else {})},
            **(linear or {}),
            **{"dtype": each_dtype, "mask": each_mask, "seq_len": seq_len, "query_len": queries, "passes": each_pass},
        )
        for each_dtype, each_mask, seq_len, queries, each_pass in itertools.product(*axes)
    ]


def step_sizes(shape: Shape, layers: int | None) -> dict[str, Any]:
    """What a training step's workload has beside its attention."""
    if shape.model is None:
        raise BadInput("a training step needs a whole model. Leave --heads out, or give --model a YAML file.")
    model = Model.load(shape.model)
    return {name: getattr(model, name) for name in SIZES} | ({"layers": layers} if layers else {})


def parse_plans(
    plans: Sequence[str],
    *,
    scheme: str | None,
    layout: str,
    kernel: str | None,
    tile: str | None,
    unroll: str,
    meshes: Sequence[str],
    inference: bool = False,
    attention: str = ATTENTIONS[0],
) -> tuple[list[Plan], bool]:
    """(the plans named one by one, or the grid of the other options; whether those without a mesh stand for every one).
    A layout or kernel that a scheme does not have is left out where `all` were asked for, and of all schemes those of
    inference, or the others; where no kernel is asked for it is the scheme's own.

    Raises:
        BadInput: something is not known, or a mesh is named beside `auto`.
    """
    auto = "auto" in meshes
    if auto and len(meshes) > 1:
        raise BadInput("--mesh auto is every mesh; leave the others out.")
    if plans and scheme is not None:
        raise BadInput("--plan names whole plans. Leave --scheme out, or put its schemes in plans.")
    if plans:
        return list(dict.fromkeys(map(parse_plan, plans))), auto
    grid = itertools.product(
        scheme_names(("all" if inference else "ring") if scheme is None else scheme, inference, attention),
        [None] if auto else [parse_mesh(text) for text in meshes] or [None],
        words(kernel, "kernel", kernels.names()) if kernel else [""],
        [parse_tile(text) for text in tile.split(",")] if tile else [None],
        parse_turns(unroll),
        words(layout, "layout", layouts.names()),
    )
    found = [
        Plan(name, laid, computed or DEFAULT_KERNELS[schemes[name].kernels[0]], mesh, size, turns)
        for name, mesh, computed, size, turns, laid in grid
        if layout != "all" or laid in (schemes[name].layouts or layouts.names())
        if kernel != "all" or kernels[computed].family in schemes[name].kernels
    ]
    return found, auto


def scheme_names(text: str, inference: bool, attention: str) -> list[str]:
    """A comma list of schemes, or all of training, or of inference, that compute such attention."""
    names = words(text, "scheme", schemes.names())
    if "all" not in text.split(","):
        return names
    families = {"linear"} if attention == "linear" else {"softmax", "scores"}
    able = [name for name in names if families & {*schemes[name].kernels}]
    return [name for name in able if (schemes[name].queries != "all") == inference]


def parse_turns(unroll: str) -> list[int]:
    """A comma list of rounds to unroll.

    Raises:
        BadInput: not one.
    """
    if not all(re.fullmatch(r"0*[1-9]\d{0,5}", turns.strip()) for turns in unroll.split(",")):
        raise BadInput(f"--unroll {unroll!r} is not a list of numbers from 1. Write 1 or 1,2,7.")
    return list(map(int, unroll.split(",")))


def parse_hardware(name: str | None) -> Hardware | None:
    return Hardware.load(name) if name else None


def parse_flags(texts: Sequence[str]) -> list[dict[str, str]]:
    """The grid of compiler flags: every combination of their values, or none at all.

    Raises:
        BadInput: not name=value, or the same name twice.
    """
    flags: dict[str, list[str]] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        name = name.strip().removeprefix("--")
        if not equals or not re.fullmatch(r"\w+", name) or name in flags:
            raise BadInput(f"--xla-flag {text!r} is not NAME=VALUE, or its name is there twice.")
        flags[name] = [value.strip() for value in values.split(",")]
    return [dict(zip(flags, values, strict=True)) for values in itertools.product(*flags.values())]
