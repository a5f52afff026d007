"""The reasons why a plan cannot compute a workload."""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from stripectl.core.architecture import Architecture
from stripectl.core.kept import Kept
from stripectl.core.kernel import LINEAR_FAMILIES, Capability, Kernel, kernels
from stripectl.core.layer_groups import LayerGroup, layer_groups, parts_of_plan
from stripectl.core.layout import Layout, layouts
from stripectl.core.layout_switch import BASE, why_no_switch
from stripectl.core.mesh import BATCH_AXES, HEAD_AXES, RING_AXES, SEQUENCE_AXES
from stripectl.core.model import Model
from stripectl.core.plan import DEFAULT_KERNELS, MAX_SHARDS, MAX_TILE_ROWS_COUNTED, STATES, Plan
from stripectl.core.reason import Reason, ReasonKind
from stripectl.core.scheme import Scheme, schemes
from stripectl.core.sequence_sharding import SequenceSharding, query_sharding, sequence_sharding
from stripectl.core.workload import STEP, Workload
from stripectl.errors import StripectlError
from stripectl.util.plug_in_errors import plug_in_reason, show_traceback, wrong_result
from stripectl.util.units import plural

# The models that have layers which a plan names in an option.
MODELS_WITH = {
    "softmax": "models with linear and softmax layers",
    "sliding": "models where some softmax layers have a shorter window than others",
}


def why_unsupported(
    plan: Plan, workload: Workload, kind: str, devices: int | None = None, capability: Capability | None = None
) -> Reason | None:
    """Why the plan cannot compute the workload on `devices` devices (None: any number) of this kind, or None.
    `capability` is the compute capability of a GPU (None: not known)."""
    alike = layer_groups(workload, plan)
    reasons = (reason for _, own, each in alike for reason in _reasons(each, own, kind, devices, capability))
    return next(itertools.chain(_layer_reasons(plan, workload, alike), reasons), None)


def why_missing(layers: Iterable[LayerGroup]) -> Reason | None:
    """Why a kernel of these layers cannot run in this installation, whatever it supports, or None."""
    reasons = (kernels[group.plan.kernel].why_missing() for group in layers if group.plan.kernel)
    return next((reason for reason in reasons if reason), None)


def _layer_reasons(plan: Plan, workload: Workload, alike: Sequence[LayerGroup]) -> Iterator[Reason]:
    """Why the layers of a model cannot be computed together, or a part of the plan not at all."""
    for part in plan.not_built:
        yield Reason.unsupported(f"{part} is not built yet", "Omit it.")
    parts = {*parts_of_plan(workload).values()}
    for part, own in (("softmax", plan.softmax), ("sliding", plan.sliding)):
        if own and part not in parts:
            yield Reason.unsupported(f"{part}=... applies only to {MODELS_WITH[part]}", f"Omit {part}={own}.")
    if plan.sliding and plan.sliding.layout and plan.sliding.layout != (plan.softmax_layout or plan.layout):
        yield Reason.unsupported(
            "layers with windows in another layout than other softmax layers are not built yet",
            f"Omit {plan.sliding.layout} in sliding={plan.sliding}.",
        )
    names = [each.plan.scheme for each in alike]
    transposed = [name for name in names if schemes[name].backward is None]
    if Kept.CONTEXT in plan.kept_by_name and transposed:
        option = f"offload={Kept.CONTEXT}" if Kept.CONTEXT in plan.offloaded else f"remat={plan.remat}"
        yield Reason.unsupported(
            f"{option} has no effect on {' and '.join(transposed)}, because only a scheme with its own backward "
            "pass keeps the output of attention",
            "Try remat=full, or --scheme ring." if len(names) == 1 else "Try remat=full, or softmax=all_gather.",
        )
    yield from _kept_reasons(plan, alike[0].workload.architecture)
    if len({schemes[name].row_axes for name in names}) > 1:
        yield Reason.unsupported(f"{' and '.join(names)} shard hidden states differently", _sharding_hint(plan))
    if own := plan.softmax_layout:
        seq_len = alike[0].workload.seq_len
        reason = layouts[own].why_unsupported(seq_len, plan.shards) or why_no_switch(plan, layouts[own], seq_len)
        if reason:
            yield reason


def _sharding_hint(plan: Plan) -> str:
    """The option with which all layers shard hidden states in one way."""
    usual = replace(plan, softmax=None).for_attention("softmax").scheme
    softmax = plan.for_attention("softmax").scheme
    if plan.sliding and schemes[softmax].row_axes == schemes[usual].row_axes:
        return f"Try sliding={softmax}."
    return f"Try softmax={usual}."


def _kept_reasons(plan: Plan, architecture: Architecture) -> Iterator[Reason]:
    """Why a value that a plan names cannot be kept for the backward pass of a layer, which does not need it."""
    both = [name for name in plan.remat.split("+") if name in plan.offloaded]
    if both:
        yield Reason.unsupported(
            f"remat={both[0]} has no effect because offload={both[0]} keeps the value", "Omit one."
        )
    if architecture.norms_after:
        return
    named = plan.kept_by_name
    unused = [Kept.FEED_FORWARD] * (Kept.FEED_FORWARD in named)
    unused += [Kept.PROJECTION] * (Kept.PROJECTION in named and plan.remat == "none")
    for name in unused:
        yield Reason.unsupported(
            f"keeping the value {name} has no effect because the backward pass of this model's layers does not need it",
            f"Omit {name}.",
        )


def _reasons(
    plan: Plan, workload: Workload, kind: str, devices: int | None, capability: Capability | None
) -> Iterator[Reason]:
    scheme, layout, kernel = schemes[plan.scheme], layouts[plan.layout], kernels[plan.kernel]
    if scheme.layouts is not None and plan.layout not in scheme.layouts:
        why = ", because its shards are no runs of adjacent tokens" * scheme.sends_halos
        yield Reason.unsupported(
            f"{plan.scheme} does not run on the {plan.layout} layout{why}", f"Try {' or '.join(scheme.layouts)}."
        )
    yield from _family_reasons(plan, scheme, kernel, workload)
    if workload.soft_cap and not kernel.caps_scores:
        able = "pallas_tpu" if kind == "tpu" else DEFAULT_KERNELS["softmax"]
        yield Reason.unsupported(f"{plan.kernel} computes no soft cap of scores", f"Try --kernel {able}.")
    for axis in unused_axes(plan):
        uses = f"it uses {', '.join(scheme.axes)}" if scheme.axes else "a sequence stays on one device"
        yield Reason(ReasonKind.NO_AXIS, f"{plan.scheme} has no axis {axis}; {uses}", f"Try {axis}=1.")
    if plan.shards > MAX_SHARDS:
        yield Reason.unsupported(
            f"{plan.shards} shards form more pairs than can be counted", f"Try a mesh of at most {MAX_SHARDS} shards."
        )
    if devices is not None and plan.devices > devices:
        yield Reason.unsupported(
            f"the mesh needs {plan.devices} devices and the target has {devices}", "Try another --mesh or --target."
        )
    yield from _division_reasons(plan, workload)
    if reason := layout.why_unsupported(workload.seq_len, plan.shards):
        yield reason
    if scheme.sends_halos and (reason := _why_no_halo(plan, layout, workload)):
        yield reason
    yield from _query_reasons(plan, layout, workload)
    yield from _tile_reasons(plan, layout, kernel, sequence_sharding(workload, plan))
    yield from _row_reasons(plan, layout, workload)
    piece = workload.seq_len // plan.shards // layout.pieces
    tile = plan.tile or kernel.largest_tile(kernel.default_tile(kind), piece)
    for reason in (
        why_model_unsupported(plan, workload.sizes) if workload.passes == STEP else None,
        _answer(plan.scheme, scheme.why_unsupported, workload, plan.axes),
        _answer(plan.kernel, kernel.why_unsupported, workload, plan, kind, capability),
        None if kernel.keeps_all_scores and not tile.block_kv_compute else kernel.why_tile_unsupported(tile, piece),
        plan.backward and kernel.why_tile_unsupported(plan.backward, piece, "backward"),
    ):
        if reason:
            yield reason


def _why_no_halo(plan: Plan, layout: Layout, workload: Workload) -> Reason | None:
    """Why a window does not reach fewer keys than a ring sends, or None."""
    reach, run = workload.window.left, workload.seq_len // plan.shards // layout.pieces
    if reach is None:
        fact = f"{plan.scheme} sends the keys that a window reaches, and a {workload.mask} mask has no window"
    elif plan.shards > 1 and reach >= (plan.shards - 1) * run:
        each = f"a window of {reach + 1:,} tokens reaches {reach:,} rows before each run of {run:,}"
        fact = f"{each}, and {plan.scheme} would send no fewer than a ring of {plan.shards}"
    else:
        return None
    return Reason.unsupported(fact, "Try --scheme ring.")


def unused_axes(plan: Plan) -> list[str]:
    """The axes of a mesh that shard a sequence and that the plan's scheme does not use."""
    return [axis for axis in SEQUENCE_AXES if plan.size(axis) > 1 and axis not in schemes[plan.scheme].axes]


def _division_reasons(plan: Plan, workload: Workload) -> Iterator[Reason]:
    for axes, subject, size in (
        (BATCH_AXES, f"a batch of {workload.batch}", workload.batch),
        (HEAD_AXES, plural(workload.heads, "head"), workload.heads),
        (HEAD_AXES, plural(workload.kv_heads, "kv_head"), workload.kv_heads),
        (HEAD_AXES, plural(workload.query_heads, "key_head"), workload.query_heads),
    ):
        if size % plan.product(axes):
            named = {axis: plan.size(axis) for axis in axes if plan.size(axis) > 1}
            over = ",".join(f"{axis}={count}" for axis, count in named.items())
            yield Reason.unsupported(
                f"{subject} cannot be divided over {over}", f"Try {','.join(divisors_of(size, named))}."
            )


def _answer(name: str, why_unsupported: Callable[..., object], *arguments: object) -> Reason | None:
    """The answer of a scheme or a kernel of this name. It may be foreign code: its error, and an answer that is not a
    reason, are reasons, and other plans continue."""
    try:
        found = why_unsupported(*arguments)
        if found is None or isinstance(found, Reason):
            return found
        raise wrong_result("why_unsupported", why_unsupported, "a Reason or None", found)
    except StripectlError:
        raise
    except Exception as error:
        show_traceback(error)
        return Reason(ReasonKind.ERROR, f"why_unsupported of {name} failed: {plug_in_reason(error)}")


def _family_reasons(plan: Plan, scheme: Scheme, kernel: Kernel, workload: Workload) -> Iterator[Reason]:
    """Why a scheme or a workload does not work with this family of kernels."""
    linear = workload.attention == "linear"
    if linear and not set(LINEAR_FAMILIES) & set(scheme.kernel_families):
        yield Reason.unsupported(
            f"{plan.scheme} has no linear form: it keeps scores", "Try --attention softmax, or another --scheme."
        )
    if workload.kernel_family == "gated" and "gated" not in scheme.kernel_families:
        able = [name for name in schemes.names() if "gated" in schemes[name].kernel_families]
        yield Reason.unsupported(
            f"{plan.scheme} visits pairs of shards in an order that depends on the device, but "
            f"{workload.recurrence} reads tokens in order",
            f"Try --scheme {','.join(able)}.",
        )
    if kernel.family not in scheme.kernel_families:
        families = scheme.kernel_families
        needs = workload.kernel_family if workload.kernel_family in families else families[0]
        hint = f"Try --kernel {DEFAULT_KERNELS[needs]}."
        yield Reason.unsupported(
            f"{plan.scheme} needs a {needs} kernel; {plan.kernel} is a {kernel.family} kernel", hint
        )
    if scheme.sends_states and kernel.family == "linear" and plan.layout != BASE:
        yield Reason.unsupported(
            f"linear attention with a constant gate needs {BASE} shards for its states", f"Try --layout {BASE}."
        )
    if plan.states != STATES[0] and not scheme.sends_states:
        yield Reason.unsupported(f"{plan.scheme} sends no states", f"Omit states={plan.states}, or try --scheme lasp.")
    if kernel.attention != workload.attention or (linear and kernel.family != workload.kernel_family):
        hint = f"Try --kernel {DEFAULT_KERNELS[workload.kernel_family]}." if linear else "Add --attention linear."
        what = workload.recurrence if workload.gated else f"{workload.attention} attention"
        needs = f"{what} needs a {workload.kernel_family} kernel"
        yield Reason.unsupported(f"{needs}, and {plan.kernel} is a {kernel.family} kernel", hint)


def _query_reasons(plan: Plan, layout: Layout, workload: Workload) -> Iterator[Reason]:
    """Why the queries of an inference cannot be distributed over the shards."""
    scheme = schemes[plan.scheme]
    if scheme.query_sharding != "all" and workload.passes != "forward":
        yield Reason.unsupported(f"{plan.scheme} is for inference", "Use --pass forward, or another --scheme.")
    if workload.query_len is None:
        if scheme.query_sharding == "whole":
            yield Reason.unsupported(
                f"{plan.scheme} replicates all queries on every device, for decoding", "Add --query-len 1."
            )
        return
    if scheme.query_sharding == "all":
        able = [name for name in schemes.names() if schemes[name].query_sharding != "all"]
        yield Reason.unsupported(f"{plan.scheme} needs as many queries as keys", f"Try --scheme {','.join(able)}.")
    how, over = query_sharding(workload, plan), plan.product((*BATCH_AXES, *RING_AXES))
    if how == "requests" and workload.batch % over:
        yield Reason.unsupported(
            f"the queries of {plural(workload.batch, 'request')} cannot be divided over {over} devices",
            f"Try --batch {-(-workload.batch // over) * over}, or --scheme tree.",
        )
    if how != "rows" and workload.query_len > 1 and layout.step(plan.shards) > 1:
        yield Reason.unsupported(
            f"{workload.query_len} queries that are not sharded need keys in order", "Try --layout contiguous."
        )


def _row_reasons(plan: Plan, layout: Layout, workload: Workload) -> Iterator[Reason]:
    """Why the rows of a shard do not divide as the plan needs."""
    shard, over = workload.seq_len // plan.shards, plan.sequence_devices // plan.shards
    if shard % over:
        dividing = {*SEQUENCE_AXES, *schemes[plan.scheme].row_axes} - {*RING_AXES}
        named = {axis: size for axis, size in plan.axes.items() if axis in dividing}
        hint = ",".join(divisors_of(shard, named))
        yield Reason.unsupported(f"the {shard} rows of a shard cannot be divided over {over} devices", f"Try {hint}.")
    rows = shard // over
    run = rows // layout.pieces
    if workload.d_conv and run < workload.d_conv - 1 and over * plan.shards > 1:
        needs = f"a short convolution of {workload.d_conv} tokens needs {workload.d_conv - 1} adjacent rows"
        yield Reason.unsupported(f"{needs}; a device has {run}", "Try fewer devices, or a longer sequence.")
    if plan.chunk and rows % min(plan.chunk, rows):
        near = next(size for size in range(plan.chunk, 0, -1) if rows % size == 0)
        yield Reason.unsupported(
            f"chunk={plan.chunk} does not divide the {rows} rows of a device", f"Try chunk={near}."
        )
    if plan.parts == 1:
        return
    if not schemes[plan.scheme].splits_kv:
        yield Reason.unsupported(f"{plan.scheme} cannot take K/V in parts", f"Omit parts={plan.parts}.")
    elif plan.parts % layout.pieces or shard % plan.parts:
        near = max(size for size in range(1, plan.parts) if size % layout.pieces == 0 == shard % size or size == 1)
        yield Reason.unsupported(
            f"parts={plan.parts} does not divide the {shard} rows of a {layout.name} shard evenly", f"Try parts={near}."
        )


def why_model_unsupported(plan: Plan, model: Model) -> Reason | None:
    """Why the plan cannot shard a model's parameters, or None."""
    tensor, shared = plan.size("tensor"), plan.product(plan.optimizer_axes)
    for name, size, over in (
        ("feed_forward", 0 if model.architecture.no_feed_forward else model.feed_forward, tensor),
        ("vocabulary", model.vocabulary, tensor),
        ("hidden", model.hidden, shared * (1 if model.architecture.tied else tensor)),
    ):
        if size % over:
            hint = (
                f"tensor={math.gcd(size, tensor)}" if over == tensor else f"zero=0, or {math.gcd(size, over)} devices"
            )
            return Reason.unsupported(f"{name} {size} cannot be divided over {over} devices", f"Try {hint}.")
    if (rotary := model.architecture.rotary_dim or 0) > model.head_dim:
        return Reason.unsupported(
            f"rotary_dim {rotary} is larger than a head of {model.head_dim}", "Try a smaller rotary_dim."
        )
    if model.head_dim % 2:
        return Reason.unsupported(
            f"rotary positions need an even head_dim; it is {model.head_dim}", f"Try --head-dim {model.head_dim + 1}."
        )
    return None


def divisors_of(size: int, axes: Mapping[str, int]) -> Iterator[str]:
    """The axes with the largest sizes, each at most its own, whose product divides `size`: `data=2`."""
    for axis, count in axes.items():
        part = math.gcd(size, count)
        size //= part
        yield f"{axis}={part}"


def _tile_reasons(plan: Plan, layout: Layout, kernel: Kernel, sharding: SequenceSharding) -> Iterator[Reason]:
    piece, queries = sharding.key_piece, sharding.query_piece
    for name, tile in (("tile", plan.tile), ("backward tile", plan.backward)):
        if tile and (tile.block_q > kernel.padded(queries) or tile.block_kv > kernel.padded(piece)):
            where = "shard" if layout.pieces == 1 else f"piece of a {layout.name} shard"
            most = str(kernel.padded(piece)) if queries == piece else f"{queries}x{piece}"
            rows = f"{piece} rows" if queries == piece else f"{queries} queries and {piece} keys"
            yield Reason.unsupported(
                f"the {name} {tile} is larger than the {rows} of a {where}", f"Try a tile of at most {most}."
            )
        if tile and queries // tile.block_q * plan.shards > MAX_TILE_ROWS_COUNTED:
            yield Reason.unsupported(f"the {name} {tile} gives too many rows of tiles to count", "Try a larger tile.")


def why_not_whole_sequences(name: str, workload: Workload) -> Reason | None:
    """Why a kernel for whole sequences cannot compute a workload, or None."""
    if workload.query_len is not None:
        return Reason.unsupported(f"{name} needs as many queries as keys", "Try --kernel xla.")
    if workload.documents is not None:
        return Reason.unsupported(f"{name} has masks for whole sequences, but not for documents", "Try --kernel xla.")
    return None


def why_not_one_document(name: str, workload: Workload) -> Reason | None:
    """Why a kernel of linear attention cannot compute a workload's sequences, or None."""
    if workload.query_len is not None or workload.documents is not None:
        return Reason.unsupported(
            f"{name} computes whole sequences of one document each", "Omit --query-len and --documents."
        )
    return None


def why_unsupported_by_pallas(name: str, workload: Workload, kind: str) -> Reason | None:
    """Why a Pallas kernel for TPUs and whole sequences cannot run a plan, or None."""
    if kind != "tpu":
        return Reason.unsupported(f"{name} runs on TPUs", "Try --kernel xla.")
    return why_not_whole_sequences(name, workload)
