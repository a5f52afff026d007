"""A plan's attention inside your own program, over your mesh.

Letters: B batch, T positions in the layout's order, N query heads, K key/value heads, H head_dim.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from stripectl.core.kernel import kernels
from stripectl.core.layout import layouts
from stripectl.core.linear_attention import CONSTANT, FEATURES, PER_HEAD
from stripectl.core.mesh import BATCH_AXES, HEAD_AXES, SEQUENCE_AXES
from stripectl.core.plan import Plan
from stripectl.core.scheme import schemes
from stripectl.core.sequence_sharding import axes_of
from stripectl.core.validation import why_unsupported
from stripectl.core.workload import Workload
from stripectl.costs.defaults import with_defaults
from stripectl.errors import BadInput
from stripectl.execute.attend import starts_of_segments
from stripectl.execute.attention import plan_attention
from stripectl.execute.comm import JaxComm
from stripectl.execute.derivatives import reverse_mode_only
from stripectl.execute.program import partition
from stripectl.execute.settings import own_settings
from stripectl.hardware.profile import Hardware, hardware_of_device
from stripectl.training.arguments import (
    PHRASES,
    cannot_attend,
    check_heads,
    check_packing,
    check_scale,
    check_sinks,
    gates_in_order,
)
from stripectl.training.order import plan_on_mesh
from stripectl.util.python_words import python_words


@python_words(PHRASES)
@own_settings
def sequence_parallel_attention(
    q_BTNH: jax.Array,
    k_BTKH: jax.Array,
    v_BTKH: jax.Array,
    plan: Plan | str,
    mesh: Mesh | AbstractMesh | None,
    *,
    mask: str = "causal",
    documents: jax.Array | np.ndarray | None = None,
    segment_ids: jax.Array | np.ndarray | None = None,
    scale: float | jax.Array | None = None,
    soft_cap: float | None = None,
    sinks: jax.Array | np.ndarray | None = None,
    decay: str | float = "1",
    features: str = FEATURES[0],
    recurrence: str = CONSTANT,
    gates: Mapping[str, jax.Array] | None = None,
) -> jax.Array:
    """Attention by a plan's scheme, layout and kernel. Call it inside your own jit.

    It has gradients in reverse mode (`jax.grad`, `jax.vjp`): the scheme's own backward pass where it has one, else the
    transpose. Forward mode is refused, and so are gradients of gradients, which only the kernel `dense` has. A plan
    with a linear attention kernel computes linear attention. Exact: this is the program that `stripectl bench` times
    and checks, whatever JAX's settings for 64 bits and promotion are. Values of `documents`, `segment_ids` and `gates`
    are checked where they are known, outside a jit; shapes and dtypes always.

    Args:
        q_BTNH: (batch, positions, heads, head_dim), as in jax.nn.dot_product_attention; float32 or bfloat16, with
            positions in the plan's layout (`positions`).
        k_BTKH, v_BTKH: (batch, positions, kv_heads, head_dim); kv_heads divides heads. Values may have another head
            size, which the output then has too. With `mesh`, an axis `tensor` may be larger than kv_heads: each device
            then has a copy of the heads that it needs.
        plan: a plan or its text, `ring/striped@ring=4,tensor=2`. It names a layout wherever its scheme has several,
            because the layout decides the order of the tokens that you pass. Without a mesh it takes the sizes of
            `mesh`, without a kernel the kernel of the devices, and without a tile the fastest tile by the table of the
            devices, as in `stripectl bench`.
        mesh: the mesh of the arrays: batch is sharded over its axes `data` and `fsdp`, positions over `ring` and the
            other axes of a sequence, heads over `tensor`. None: this is called inside your own shard_map over such
            axes, with one device's part of each array, and the plan names its mesh. Axes may be Auto or Explicit.
        mask: `causal`, `full`, or `sliding:4k`: each query sees 4k keys, its own included.
        documents: int32 (batch, documents), where several documents are packed in a sequence: the position in the text
            at which each begins, ascending from 0, padded with the sequence's length (`Packing` makes them). A query
            sees only the keys of its own document. Sharded like the batch, with a copy on every device of a sequence.
        segment_ids: int32 (batch, positions) in the plan's layout, the same as the document of each token. Tokens of a
            document are adjacent in the text: under a jit, a number that comes back is another document.
        scale: the factor of the scores of softmax attention, by default head_dim ** -0.5: a number or a float32 scalar,
            which may be traced. Queries are multiplied by its share of the default and rounded to their dtype. Linear
            attention has none.
        soft_cap: a positive number c by which softmax attention bounds scores x after their scale, c tanh(x / c) (Gemma
            2: 50). Kernels that cannot are refused.
        sinks: float32 (heads,), sharded like heads: for each query head of softmax attention the logarithm of one more
            term in the sum of a query's exponentials, which has no value (gpt-oss). Inside your own shard_map their
            gradient is this device's part, to be summed over the axes of batch and sequence.
        decay: for linear attention, the factor by which a state decays per token: a number, or `per-head` for
            the decays of TransNormerLLM.
        features: for linear attention, the map of queries and keys: `none`, or `elu` (1 + elu).
        recurrence: for linear attention, the rule of a plan with the kernel `gated`: `gdn`, `kda`, `mamba2`, `gla` or
            `deltanet`. Queries and keys then have the same heads, and values may have more, in equal groups.
        gates: the arrays of the recurrence by name, float32. `log_gate`, the logarithm of the factor by which a state
            decays, at most 0: (batch, positions, value heads), with `kda` and `gla` (batch, positions, value heads,
            head_dim of keys). `write`, with the delta rule (`gdn`, `kda`, `deltanet`), the share of an old value that a
            new one replaces, from 0 to 2: (batch, positions, value heads).

    Returns:
        (batch, positions, heads, head_dim) in the dtype of q, sharded over the axes as `mesh` says.

    Raises:
        BadInput: an argument is wrong, or the plan is unknown, does not fit the mesh or cannot compute these shapes;
            the message has the reason and what to try. Also where a tangent or a second derivative is asked for.
    """
    plan = plan_on_mesh(plan, mesh)
    check_heads(q_BTNH, k_BTKH, v_BTKH, recurrence)
    attention = attention_of_plan(plan, recurrence)
    if schemes[plan.scheme].query_sharding == "whole":
        raise cannot_attend(
            f"{plan.scheme} is for decoding, with all queries on every device", "scheme ring in the plan"
        )
    if attention == "softmax" and (str(decay), features) != ("1", FEATURES[0]):
        raise cannot_attend(f"decay and features are of linear attention, and {plan} is not", "ring/contiguous/chunked")
    kept = {
        "attention": attention,
        "decay": str(decay) if isinstance(decay, int | float) else decay,
        "features": features,
        "recurrence": recurrence,
        "soft_cap": float(soft_cap) if isinstance(soft_cap, np.floating | np.integer) else soft_cap,
        "sinks": sinks is not None,
    }
    parts = (1, 1, 1) if mesh else tuple(map(plan.product, (BATCH_AXES, SEQUENCE_AXES, HEAD_AXES)))
    batch, rows = q_BTNH.shape[:2]
    check_packing(documents, segment_ids, plan, batch, rows, rows * parts[1])
    if sinks is not None:
        check_sinks(sinks, q_BTNH.shape[2])
    if scale is not None:
        check_scale(scale, attention)
        factor = jnp.asarray(scale, jnp.float32) * math.sqrt(q_BTNH.shape[3])
        q_BTNH = (jnp.asarray(q_BTNH, jnp.float32) * factor).astype(q_BTNH.dtype)
    if mesh is not None and decay != PER_HEAD:
        q_BTNH, k_BTKH, v_BTKH = with_copied_heads(q_BTNH, k_BTKH, v_BTKH, plan.product(HEAD_AXES), recurrence)
    packed = documents is not None or segment_ids is not None
    work = workload_of_arrays(q_BTNH, k_BTKH, v_BTKH, parts, packed, mask=mask, **kept)
    in_order = gates_in_order(gates, work, (*v_BTKH.shape[:3],))
    hardware = mesh_hardware(mesh)
    trains = schemes[plan.scheme].query_sharding == "all"  # then the caller may differentiate
    plan = with_defaults(plan, replace(work, passes="forward-backward") if trains else work, hardware)
    if reason := why_unsupported(plan, work, hardware.kind):
        raise BadInput(f"{plan} cannot attend: {reason}")
    given = [jnp.asarray(x, jnp.int32) for x in (documents, segment_ids) if x is not None]
    of_segments = segment_ids is not None
    if mesh is None:
        attend = attention_inside_shard_map(plan, work, of_segments)
    else:
        attend = on_mesh(plan, work, mesh, of_segments)
    inner = [jnp.swapaxes(x, 1, 2) for x in (q_BTNH, k_BTKH, v_BTKH, *in_order)]
    inner = map(reverse_mode_only, inner if sinks is None else [*inner, jnp.asarray(sinks)[None, :, None]])
    return jnp.swapaxes(attend(*with_common_axes([*inner, *given], plan, work)), 1, 2)


def on_mesh(plan: Plan, workload: Workload, mesh: Mesh | AbstractMesh, of_segments: bool = False) -> Callable:
    """attention(q_BNTH, k_BKTH, v_BKTH, *gates, sinks_1N1 if any, starts_BD if there are documents) -> out_BNTH, all
    global arrays, for a plan that names its tile and all sizes; with `of_segments` it takes the document of each token,
    (batch, positions), in place of starts."""
    spec, attend = partition(plan), shard_attention_of(plan, workload, of_segments)
    of_keys = (PartitionSpec(*spec[: 3 + len(shape)]) for _, _, shape, _ in workload.kv_shapes)
    of_documents = PartitionSpec(spec[0], spec[2]) if of_segments else PartitionSpec(spec[0])
    specs = (spec, *of_keys) + (PartitionSpec(None, spec[1], None),) * workload.sinks
    specs += (of_documents,) * (workload.documents is not None)
    mapped = jax.shard_map(attend, mesh=mesh, in_specs=specs, out_specs=spec, check_vma=False)
    explicit = {axis for axis, kind in zip(mesh.axis_names, mesh.axis_types, strict=True) if kind == AxisType.Explicit}
    if not explicit:
        return mapped

    def explicit_axes(spec: PartitionSpec) -> PartitionSpec:
        """The axes of a spec that are part of an array's type."""
        each = ((axes,) if isinstance(axes, str) else axes or () for axes in spec)
        return PartitionSpec(*(tuple(axis for axis in axes if axis in explicit) or None for axes in each))

    def laid(*arrays: jax.Array) -> jax.Array:
        return mapped(
            *(jax.reshard(x, NamedSharding(mesh, explicit_axes(each))) for x, each in zip(arrays, specs, strict=True))
        )

    return laid


def shard_attention_of(plan: Plan, workload: Workload, of_segments: bool) -> Callable:
    """A plan's attention on one device's part, which takes the starts of documents or, with `of_segments`, this
    device's part of the document of each token."""
    attend = plan_attention(plan, workload, layer=True)
    if not of_segments:
        return attend
    inverse = layouts[plan.layout].inverse(plan.shards, workload.seq_len)
    comm, (_, _, axes) = JaxComm(plan), axes_of(plan, "keys")

    @own_settings
    def attention(*arrays: jax.Array) -> jax.Array:
        *others, ids_BT = arrays
        for axis in reversed(axes):
            ids_BT = comm.all_gather(ids_BT, axis, "documents", join=1)
        return attend(*others, starts_of_segments(ids_BT[:, inverse]))

    return attention


def with_copied_heads(
    q_BTNH: jax.Array, k_BTKH: jax.Array, v_BTKH: jax.Array, devices: int, recurrence: str
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Queries, keys and values in which heads that several query heads share (with a recurrence, that several value
    heads share) are copied until they can be divided over the devices; unchanged where no number of copies helps."""
    shared, sharing = k_BTKH.shape[2], (q_BTNH if recurrence == CONSTANT else v_BTKH).shape[2]
    copies = math.lcm(shared, devices) // shared
    if copies == 1 or sharing % (shared * copies):
        return q_BTNH, k_BTKH, v_BTKH
    k_BTKH = jnp.repeat(k_BTKH, copies, axis=2)
    if recurrence == CONSTANT:
        return q_BTNH, k_BTKH, jnp.repeat(v_BTKH, copies, axis=2)
    return jnp.repeat(q_BTNH, copies, axis=2), k_BTKH, v_BTKH


def attention_of_plan(plan: Plan, recurrence: str) -> str:
    """The attention that a plan computes: linear where a recurrence is given, else of its kernel, else linear where its
    scheme sends states, else softmax."""
    if plan.kernel and recurrence == CONSTANT:
        return kernels[plan.kernel].attention
    return "linear" if recurrence != CONSTANT or schemes[plan.scheme].sends_states else "softmax"


def mesh_hardware(mesh: Mesh | AbstractMesh | None) -> Hardware:
    """The machine of a mesh, or of the local devices where the mesh names none."""
    device = mesh.devices.flat[0] if isinstance(mesh, Mesh) else jax.devices()[0]
    return hardware_of_device(device.device_kind, device.platform)


def workload_of_arrays(
    q_BTNH: jax.Array, k_BTKH: jax.Array, v_BTKH: jax.Array, parts: Sequence[int], packed: bool, **kept: Any
) -> Workload:
    """Make the workload of arrays that are shards over `parts` of batch, positions and heads; `kept` are fields as
    given.

    Raises:
        BadInput: a field is unknown, or does not fit the others.
    """
    (batch, rows, heads, head_dim), kv_heads = q_BTNH.shape, k_BTKH.shape[2]
    if kept.get("recurrence", CONSTANT) != CONSTANT:
        kept, heads, kv_heads = kept | {"key_heads": heads * parts[2]}, v_BTKH.shape[2], v_BTKH.shape[2]
    return Workload(
        seq_len=rows * parts[1],
        batch=batch * parts[0],
        heads=heads * parts[2],
        kv_heads=kv_heads * parts[2],
        head_dim=head_dim,
        v_head_dim=v_BTKH.shape[3],
        dtype=str(q_BTNH.dtype),
        documents=(rows * parts[1],) if packed else None,
        **kept,
    )


def with_common_axes(arrays: Sequence[jax.Array], plan: Plan, workload: Workload) -> list[jax.Array]:
    """The arrays with one set of axes of a surrounding shard_map over which they vary, where it has check_vma=True.

    Raises:
        BadInput: it has, and the kernel's library says nothing about axes.
    """
    varying = [jax.typeof(x).manual_axis_type.varying for x in arrays]
    axes = frozenset[str]().union(*varying)
    if axes and kernels[plan.kernel].why_unsupported(workload, plan, "cpu", None):
        raise cannot_attend(
            f"the surrounding shard_map has check_vma=True, and the kernel {plan.kernel} does not say over which axes "
            f"its results vary",
            "check_vma=False, or mesh=... outside a shard_map",
        )
    if not axes:
        return [*arrays]
    return [lax.pcast(x, tuple(axes - own), to="varying") for x, own in zip(arrays, varying, strict=True)]


def attention_inside_shard_map(plan: Plan, workload: Workload, of_segments: bool) -> Callable:
    """The attention of `on_mesh` on one device, inside a shard_map whose axes are the plan's.

    Raises:
        BadInput: the axes differ.
    """
    for axis, size in plan.axes.items():
        try:
            found = lax.axis_size(axis)
        except NameError:
            raise BadInput(
                f"the surrounding shard_map has no axis {axis}, which {plan} needs. Try jax.shard_map over a mesh with "
                f"{axis}={size}, or mesh=... outside a shard_map."
            ) from None
        if found != size:
            raise BadInput(
                f"{plan} needs {axis}={size}, but the surrounding shard_map has {axis}={found}. Try {axis}={found} in "
                f"the plan."
            )
    return shard_attention_of(plan, workload, of_segments)
