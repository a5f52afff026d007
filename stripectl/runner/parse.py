"""The meaning of options: strings become workloads, plans and requests here."""

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from stripectl.core.layout import MASKS
from stripectl.core.layout_switch import BASE
from stripectl.core.linear_attention import ATTENTIONS, CONSTANT, LINEAR, kernel_family
from stripectl.core.model_config import STEP_FIELDS, Model
from stripectl.core.plan import (
    DEFAULT_KERNELS,
    HYBRID_SOFTMAX_SCHEME,
    Plan,
    Softmax,
    kernels,
    layouts,
    parse_mesh,
    parse_plan,
    parse_tile,
    schemes,
)
from stripectl.core.scheme import Scheme
from stripectl.core.workload import (
    ATTENTION_PASSES,
    DTYPES,
    PASSES,
    SLIDING,
    STEP,
    Workload,
    format_length,
    parse_length,
    parse_lengths,
    parse_mask,
)
from stripectl.errors import BadInput
from stripectl.hardware.profile import Hardware
from stripectl.measure.sampler import SamplingOptions
from stripectl.results.schema import MAX_ASKED_PLANS
from stripectl.runner.options import (
    DEFAULT_BATCH,
    DEFAULT_LEN,
    DEFAULT_MASK,
    TRACE_MIN_SAMPLES,
    TRACE_TIME_BUDGET,
    RequestOptions,
)
from stripectl.runner.request import Request
from stripectl.util.files import unknown_name

ALL = "all"
MAX_DURATION_S = 480 * 3600  # the milliseconds of a longer wait do not fit into 31 bits


@dataclass(frozen=True)
class HeadShape:
    """Heads of a workload, and the model that they come from."""

    model: str | None
    heads: int
    kv_heads: int
    head_dim: int
    v_head_dim: int | None = None
    key_heads: int | None = None


def parse_request(options: RequestOptions) -> Request:
    """The request that the options describe."""
    longest, every_tile = options.finds_max_length, options.tile == ALL
    if longest and every_tile:
        raise BadInput("--seqlen max needs one tile per plan. Omit --tile all, or name a tile.")
    linear = parse_linear(options)
    workloads = parse_workloads(options, linear)
    plans, every_mesh = parse_plans(options, linear)
    flags = parse_flags(options.xla_flags)
    check_count(len(workloads) * len(plans) * len(flags))
    return Request(
        workloads=workloads,
        plans=plans,
        default_kernel=options.kernel is None and not options.plans,
        target=options.target,
        hardware=parse_hardware(options.hardware),
        method=options.method,
        default_dtype=options.dtype is None,
        flags=flags,
        find_max_length=longest,
        every_mesh=every_mesh,
        every_tile=every_tile,
        refine_count=options.refine or Request.refine_count,
        use_cache=options.cache,
        sampling=parse_effort(options),
    )


def parse_trace(options: RequestOptions, plan: str) -> Request:
    """The request that measures one plan, to be profiled."""
    own = replace(
        options,
        plans=(plan,),
        method="measured",
        time_budget=TRACE_TIME_BUDGET,
        min_samples=TRACE_MIN_SAMPLES,
    )
    return replace(parse_request(own), baseline=False, default_size=not options.has_size)


def parse_linear(options: RequestOptions) -> dict[str, str]:
    """The requested attention: from the options, else from the model, even where its heads are replaced, else from a
    scheme that supports only linear attention."""
    model = Model.load(options.model) if options.model else None
    named = [parse_plan(text).scheme for text in options.plans] + (options.scheme or "").split(",")
    linear = any(schemes[name.strip()].sends_states for name in named if name.strip() in schemes.names())
    asked = {name: value for name in LINEAR if (value := getattr(options, name)) is not None}
    if asked.get("attention") == "softmax":
        return asked
    found = {name: getattr(model, name) for name in LINEAR} if model and model.attention != ATTENTIONS[0] else {}
    return {**({"attention": "linear"} if (linear or asked.get("recurrence")) and not found else {}), **found, **asked}


def parse_effort(options: RequestOptions) -> SamplingOptions:
    """The sampling options."""
    return SamplingOptions(
        budget_s=parse_duration(options.time_budget),
        min_samples=options.min_samples,
        warmup=options.warmup,
        compile_timeout_s=parse_duration(options.compile_timeout),
    )


def parse_heads(
    model: str | None,
    heads: int | None,
    kv_heads: int | None,
    head_dim: int | None,
    v_head_dim: int | None = None,
    key_heads: int | None = None,
    attention: str | None = None,
) -> HeadShape:
    """A model's heads, or the given heads; a model whose heads are replaced does not keep its name."""
    named = Model.load(model or "1b")
    if attention in ATTENTIONS and named.attention not in ATTENTIONS:
        named = named.of_kind(attention)  # one kind of a hybrid's layers
    if heads is kv_heads is head_dim is v_head_dim is key_heads is None:
        sizes = named.heads, named.kv_heads, named.head_dim, named.v_head_dim, named.key_heads
        return HeadShape(model or "1b", *sizes)
    own = heads if heads is not None else named.heads
    default_kv = own if heads is not None else named.kv_heads
    shared = kv_heads if kv_heads is not None else default_kv
    own_values = v_head_dim if v_head_dim is not None or head_dim is not None else named.v_head_dim
    of_keys = key_heads if key_heads is not None or heads is not None else named.key_heads
    return HeadShape(None, own, shared, head_dim if head_dim is not None else named.head_dim, own_values, of_keys)


def expand_grid(*axes: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
    """Every combination of the values of all axes."""
    check_count(math.prod(map(len, axes)))
    return itertools.product(*axes)


def check_count(count: int) -> None:
    """Check that a run can hold `count` measurements.

    Raises:
        BadInput: it cannot.
    """
    if count > MAX_ASKED_PLANS:
        raise BadInput(
            f"the options make a grid of {count:,} measurements, but one command runs at most {MAX_ASKED_PLANS:,}. "
            f"Make the grid smaller."
        )


def parse_names(text: str, kind: str, known: Sequence[str]) -> list[str]:
    """A comma-separated list of known names, or `all`.

    Raises:
        BadInput: an unknown name, with the nearest known names.
    """
    names = [name.strip() for name in text.split(",")]
    if "all" in names:
        return list(known)
    for name in names:
        if name not in known:
            raise unknown_name(kind, name, known)
    return list(dict.fromkeys(names))


def parse_duration(text: str) -> float:
    """Seconds of `90s`, `3m`, `1h`, or a plain number.

    Raises:
        BadInput: not a duration, or longer than any wait.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", text.strip())
    seconds = float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]] if match else 0.0
    if not 0 < seconds <= MAX_DURATION_S:
        raise BadInput(f"{text!r} is not a duration of at most {MAX_DURATION_S // 3600} hours. Write 90s, 3m or 1h.")
    return seconds


def parse_workloads(options: RequestOptions, linear: Mapping[str, str]) -> list[Workload]:
    """The grid of workloads, in order of dtype, mask, length, queries and pass; an inference has a forward pass only.
    If the longest sequence is to be found, the length is the shortest that holds the queries.

    Raises:
        BadInput: a value is unknown, or a step has no model.
    """
    asked = options.heads, options.kv_heads, options.head_dim, options.v_head_dim, options.key_heads
    shape = parse_heads(options.model, *asked, attention=linear.get("attention"))
    packed = None if options.documents is None else tuple(map(parse_length, options.documents.split(",")))
    queries = None if options.query_len is None else parse_lengths(options.query_len)
    usual = ["forward"] if queries else list(ATTENTION_PASSES)
    masks = DEFAULT_MASK if options.mask is None else options.mask
    lengths = DEFAULT_LEN if options.seqlen is None else options.seqlen
    axes = (
        parse_names(options.dtype or "bfloat16", "dtype", DTYPES),
        list(MASKS) if masks.strip() == ALL else list(dict.fromkeys(map(plain_mask, masks.split(",")))),
        [max(queries or [1])] if options.finds_max_length else parse_lengths(lengths),
        queries or [None],
        parse_names(options.passes, "pass", PASSES) if options.passes else usual,
    )
    hybrid = linear.get("attention", ATTENTIONS[0]) not in ATTENTIONS
    own = ["linear_heads"] * hybrid + ["d_conv"] * (linear.get("recurrence", CONSTANT) != CONSTANT)
    steps = step_sizes(shape, options.layers, own) if STEP in axes[-1] else {}
    if options.layers and not steps:
        raise BadInput("--layers is for training steps. Add --pass step.")
    batch = DEFAULT_BATCH if options.batch is None else options.batch
    common: Mapping[str, Any] = {**vars(shape), "batch": batch, "documents": packed, **linear}
    return [
        Workload(
            **common,
            **(steps if each_pass == STEP else {}),
            dtype=each_dtype,
            mask=each_mask,
            seq_len=seq_len,
            query_len=query_len,
            passes=each_pass,
        )
        for each_dtype, each_mask, seq_len, query_len, each_pass in expand_grid(*axes)
    ]


def plain_mask(text: str) -> str:
    """A mask in its normal spelling: `sliding:4k` for `sliding:4096`."""
    left, _ = parse_mask(text.strip())
    return text.strip() if left is None else f"{SLIDING}{format_length(left + 1)}"


def step_sizes(shape: HeadShape, layers: int | None, own: Sequence[str]) -> dict[str, Any]:
    """The fields of a training step's workload other than its attention, with these of its linear layers."""
    if shape.model is None:
        raise BadInput(
            "cannot run a training step because --heads, --kv-heads or a head size replaces sizes of the model. Omit "
            "these options, or try --model FILE with the sizes."
        )
    model = Model.load(shape.model)
    model = model.of_layers(layers) if layers else model
    return {name: getattr(model, name) for name in (*STEP_FIELDS, *own)}


def parse_plans(options: RequestOptions, linear: Mapping[str, str]) -> tuple[list[Plan], bool]:
    """(the plans named one by one, or the grid of the other options; whether plans without a mesh get every
    mesh). With `all`, layouts and kernels that a scheme does not support are skipped, and schemes are the schemes
    of inference, or the others; without --kernel it is the scheme's own.

    Raises:
        BadInput: a value is unknown, or a mesh is named together with `auto`.
    """
    auto = "auto" in options.meshes
    if auto and len(options.meshes) > 1:
        raise BadInput("--mesh auto means every mesh. Omit the other meshes.")
    if options.plans and options.scheme is not None:
        raise BadInput("--plan names whole plans. Omit --scheme, or name the schemes in plans.")
    if options.plans:
        return list(dict.fromkeys(map(parse_plan, options.plans))), auto
    attention, inference = linear.get("attention", ATTENTIONS[0]), bool(options.query_len)
    hybrid, family = attention not in ATTENTIONS, kernel_family(attention, linear.get("recurrence", CONSTANT))
    layout, kernel = options.layout, options.kernel
    named = default_scheme(inference, family) if options.scheme is None else options.scheme
    every = expand_grid(
        scheme_names(named, inference, family),
        [None] if auto else [parse_mesh(text) for text in options.meshes] or [None],
        parse_names(kernel, "kernel", kernels.names()) if kernel else [""],
        [parse_tile(text) for text in options.tile.split(",")] if options.tile and options.tile != ALL else [None],
        parse_turns(options.unroll),
        parse_names(layout, "layout", layouts.names()),
    )
    found = [
        Plan(name, laid, computed or DEFAULT_KERNELS[schemes[name].kernel_families[0]], mesh, size, turns)
        for name, mesh, computed, size, turns, laid in every
        if layout != ALL or laid in usual_layouts(schemes[name], hybrid and family == "gated")
        if kernel != ALL or kernels[computed].family in schemes[name].kernel_families
    ]
    return [each for plan in found for each in softmax_layouts(plan, hybrid and layout == ALL)], auto


def usual_layouts(scheme: Scheme, several: bool) -> Sequence[str]:
    """The layouts of a scheme that are worth trying: all of them, but of states only the contiguous one, unless
    `several` says that a hybrid model's softmax layers may gain from another."""
    return [BASE] if scheme.sends_states and not several else scheme.layouts or layouts.names()


def softmax_layouts(plan: Plan, several: bool) -> list[Plan]:
    """The plan. Where its scheme needs contiguous layers, `several` adds plans with every balanced layout for the
    softmax layers of a hybrid model."""
    if not several or not schemes[plan.scheme].sends_states or plan.layout != BASE:
        return [plan]
    others = [name for name in layouts.names() if name != plan.layout]
    own = Softmax(HYBRID_SOFTMAX_SCHEME, DEFAULT_KERNELS["softmax"])
    return [plan, *(replace(plan, softmax=replace(own, layout=name)) for name in others)]


def default_scheme(inference: bool, family: str) -> str:
    """The scheme where none is named: of a recurrence, a gather of maps."""
    return "all" if inference else "lasp2" if family == "gated" else "ring"


def scheme_names(text: str, inference: bool, family: str) -> list[str]:
    """A comma-separated list of schemes, or all schemes of training, or of inference, that use this family of
    kernels."""
    names = parse_names(text, "scheme", schemes.names())
    if "all" not in text.split(","):
        return names
    families = {"softmax", "scores"} if family == "softmax" else {family}
    able = [name for name in names if families & {*schemes[name].kernel_families}]
    return [name for name in able if (schemes[name].query_sharding != "all") == inference]


def parse_turns(unroll: str) -> list[int]:
    """A comma-separated list of rounds to unroll.

    Raises:
        BadInput: not such a list.
    """
    turns = [each.strip() for each in unroll.split(",")]
    if not all(re.fullmatch(r"0*[1-9]\d{0,5}", each) for each in turns):
        raise BadInput(f"--unroll {unroll!r} is not a list of numbers from 1. Write 1 or 1,2,7.")
    return list(map(int, turns))


def parse_hardware(name: str | None) -> Hardware | None:
    return Hardware.load(name) if name else None


def parse_flags(texts: Sequence[str]) -> list[dict[str, str]]:
    """The grid of compiler flags: every combination of their values, or one without flags.

    Raises:
        BadInput: not name=value, or a name occurs twice.
    """
    flags: dict[str, list[str]] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        name = name.strip().removeprefix("--")
        if not equals or not re.fullmatch(r"\w+", name) or name in flags:
            raise BadInput(f"--xla-flag {text!r} is not NAME=VALUE, or its name occurs twice.")
        flags[name] = [value.strip() for value in values.split(",")]
    return [dict(zip(flags, values, strict=True)) for values in expand_grid(*flags.values())]
