"""The meaning of options: strings become workloads, plans and requests here."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stripectl.core.layer_kinds import MaskRun, mask_counts, masks_of_layers
from stripectl.core.layout import MASKS, plain_mask
from stripectl.core.lengths import parse_length, parse_lengths
from stripectl.core.linear_attention import ATTENTIONS, CONSTANT, LINEAR
from stripectl.core.model import STEP_FIELDS, Model
from stripectl.core.plan import parse_plan
from stripectl.core.scheme import schemes
from stripectl.core.workload import ATTENTION_PASSES, DTYPES, PASSES, STEP, Workload
from stripectl.errors import BadInput
from stripectl.hardware.profile import Hardware
from stripectl.measure.sampler import SamplingOptions
from stripectl.models.model_files import load_model
from stripectl.runner.names import ALL, check_count, expand_grid, parse_duration, parse_names
from stripectl.runner.options import (
    DEFAULT_BATCH,
    DEFAULT_BUDGET,
    DEFAULT_COMPILE_TIMEOUT,
    DEFAULT_LEN,
    DEFAULT_MASK,
    DEFAULT_MIN_SAMPLES,
    DEFAULT_WARMUP,
    TRACE_MIN_SAMPLES,
    TRACE_TIME_BUDGET,
    RequestOptions,
)
from stripectl.runner.plan_options import check_parts_are_used, parse_plans, wants_every_mesh
from stripectl.runner.request import Request
from stripectl.util.several import Several, several, split_commas


@dataclass(frozen=True)
class HeadShape:
    """Heads of a workload, and the model that they come from."""

    model: str | None
    heads: int
    kv_heads: int
    head_dim: int
    v_head_dim: int | None = None
    key_heads: int | None = None
    sinks: bool = False
    soft_cap: float | None = None


def parse_request(options: RequestOptions) -> Request:
    """Make the request that the options describe."""
    longest, every_tile = options.finds_max_length, options.tile == ALL
    if longest and every_tile:
        raise BadInput("--seqlen max needs one tile per plan. Omit --tile all, or name a tile.")
    linear = parse_linear(options)
    workloads = parse_workloads(options, linear)
    plans = parse_plans(options, linear)
    flags = parse_flags(options.xla_flag)
    check_count(len(workloads) * len(plans) * len(flags))
    check_parts_are_used(plans, workloads)
    return Request(
        workloads=workloads,
        plans=plans,
        target=options.target,
        hardware=parse_hardware(options.hardware),
        method=options.method,
        default_dtype=options.dtype is None,
        flags=flags,
        find_max_length=longest,
        every_mesh=wants_every_mesh(options),
        every_tile=every_tile,
        refine_count=options.refine or Request.refine_count,
        use_cache=options.cache is not False,
        sampling=parse_effort(options),
        named_effort=options.named_effort,
        names_plans=bool(several(options.plan)),
    )


def parse_trace(options: RequestOptions) -> Request:
    """Make the request that measures the options' plan, to be profiled."""
    asked = parse_request(replace(options, method="measured"))
    sampling = replace(asked.sampling, budget_s=parse_duration(TRACE_TIME_BUDGET), min_samples=TRACE_MIN_SAMPLES)
    return replace(asked, sampling=sampling, baseline=False, default_size=not options.has_size)


def parse_linear(options: RequestOptions) -> dict[str, str]:
    """The requested attention: from the options, else from the model, even where its heads are replaced, else from a
    scheme that supports only linear attention."""
    model = load_model(str(options.model)) if options.model else None
    named = [parse_plan(str(each)).scheme for each in several(options.plan)] + split_commas(options.scheme)
    linear = any(schemes[name].sends_states for name in named if name in schemes.names())
    values = options.attention, options.recurrence, options.decay, options.feature_map
    asked = {name: str(value) for name, value in zip(LINEAR, values, strict=True) if value is not None}
    if asked.get("attention") == "softmax":
        return asked
    found = {name: getattr(model, name) for name in LINEAR} if model and model.attention != ATTENTIONS[0] else {}
    return {**({"attention": "linear"} if (linear or asked.get("recurrence")) and not found else {}), **found, **asked}


def parse_effort(options: RequestOptions) -> SamplingOptions:
    """The sampling options."""
    return SamplingOptions(
        budget_s=parse_duration(options.time_budget or DEFAULT_BUDGET),
        min_samples=options.min_samples or DEFAULT_MIN_SAMPLES,
        warmup=options.warmup or DEFAULT_WARMUP,
        compile_timeout_s=parse_duration(options.compile_timeout or DEFAULT_COMPILE_TIMEOUT),
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
    """A model's heads, or the given heads; a model whose heads are replaced does not keep its name.

    Raises:
        BadInput: the model has sinks or a soft cap of scores, which no option gives to other heads.
    """
    named = load_model(model or "1b")
    if attention in ATTENTIONS and named.attention not in ATTENTIONS:
        named = named.of_kind(attention)  # one kind of a hybrid's layers
    softmax = (named.sinks, named.soft_cap) if attention != "linear" else (False, None)
    if heads is kv_heads is head_dim is v_head_dim is key_heads is None:
        sizes = named.heads, named.kv_heads, named.head_dim, named.v_head_dim, named.key_heads
        return HeadShape(model or "1b", *sizes, *softmax)
    if any(softmax):
        what = " and ".join(["sinks"] * named.sinks + ["a soft cap of scores"] * bool(named.soft_cap))
        raise BadInput(
            f"cannot replace heads of the model {model} because it has {what}. Omit --heads, --kv-heads and head "
            "sizes, or try --model FILE with these sizes."
        )
    own = heads if heads is not None else named.heads
    default_kv = own if heads is not None else named.kv_heads
    shared = kv_heads if kv_heads is not None else default_kv
    own_values = v_head_dim if v_head_dim is not None or head_dim is not None else named.v_head_dim
    of_keys = key_heads if key_heads is not None or heads is not None else named.key_heads
    return HeadShape(None, own, shared, head_dim if head_dim is not None else named.head_dim, own_values, of_keys)


def parse_workloads(options: RequestOptions, linear: Mapping[str, str]) -> list[Workload]:
    """The grid of workloads, in order of dtype, mask, length, queries and pass; an inference has a forward pass only.
    If the longest sequence is to be found, the length is the shortest that holds the queries.

    Raises:
        BadInput: a value is unknown, or a step has no model.
    """
    asked = options.heads, options.kv_heads, options.head_dim, options.v_head_dim, options.key_heads
    shape = parse_heads(options.model and str(options.model), *asked, attention=linear.get("attention"))
    packed = None if options.documents is None else tuple(map(parse_length, split_commas(options.documents)))
    queries = None if options.query_len is None else parse_lengths(options.query_len)
    usual = ["forward"] if queries else list(ATTENTION_PASSES)
    patterned = options.model and options.mask is None and linear.get("attention") != "linear"
    model_masks = layer_masks_of(load_model(str(options.model))) if patterned else {}
    masks = split_commas(DEFAULT_MASK if options.mask is None else options.mask)
    lengths = DEFAULT_LEN if options.seqlen is None else options.seqlen
    axes = (
        parse_names(options.dtype or "bfloat16", "dtype", DTYPES),
        list(MASKS) if masks == [ALL] else list(dict.fromkeys(map(plain_mask, masks))),
        [max(queries or [1])] if options.finds_max_length else parse_lengths(lengths),
        queries or [None],
        parse_names(options.pass_, "pass", PASSES) if options.pass_ else usual,
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
            layer_masks=model_masks.get(each_pass == STEP, ()),
            dtype=each_dtype,
            mask=each_mask,
            seq_len=seq_len,
            query_len=query_len,
            passes=each_pass,
        )
        for each_dtype, each_mask, seq_len, query_len, each_pass in expand_grid(*axes)
    ]


def layer_masks_of(model: Model) -> dict[bool, tuple[MaskRun, ...]]:
    """The masks of a model's layers as a step has them, by True, and as attention alone has them, by False."""
    every = masks_of_layers(model.layer_masks, model.layers) if model.layer_masks else []
    return {True: model.layer_masks, False: mask_counts(every)}


def step_sizes(shape: HeadShape, layers: int | None, own: Sequence[str]) -> dict[str, Any]:
    """The fields of a training step's workload other than its attention, with these of its linear layers."""
    if shape.model is None:
        raise BadInput(
            "cannot run a training step because --heads, --kv-heads or a head size replaces sizes of the model. Omit "
            "these options, or try --model FILE with the sizes."
        )
    model = load_model(shape.model)
    model = model.of_layers(layers) if layers else model
    return {name: getattr(model, name) for name in (*STEP_FIELDS, *own)}


def parse_hardware(name: str | Path | None) -> Hardware | None:
    return Hardware.load(str(name)) if name else None


def parse_flags(texts: Several[str]) -> list[dict[str, str]]:
    """The grid of compiler flags: every combination of their values, or one without flags.

    Raises:
        BadInput: not name=value, or a name occurs twice.
    """
    flags: dict[str, list[str]] = {}
    for text in several(texts):
        name, equals, values = text.partition("=")
        name = name.strip().removeprefix("--")
        if not equals or not re.fullmatch(r"\w+", name) or name in flags:
            raise BadInput(f"--xla-flag {text!r} is not NAME=VALUE, or its name occurs twice.")
        flags[name] = split_commas(values)
    return [dict(zip(flags, values, strict=True)) for values in expand_grid(*flags.values())]
