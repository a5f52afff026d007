"""A plan inside your own program: its attention over your mesh, and the order of a sequence's tokens.

Letters: B batch, T positions in the layout's order, N query heads, K key/value heads, H head_dim.
"""

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
from stripectl.core.linear_attention import CONSTANT
from stripectl.core.plan import AXES, BATCH_AXES, HEAD_AXES, SEQUENCE_AXES, Plan, make_mesh, parse_plan
from stripectl.core.scheme import schemes
from stripectl.core.validation import why_unsupported
from stripectl.core.workload import Workload
from stripectl.costs.defaults import with_defaults
from stripectl.errors import BadInput
from stripectl.execute.attention import plan_attention
from stripectl.execute.program import partition
from stripectl.hardware.profile import Hardware, hardware_of_device


def sequence_parallel_attention(
    q_BTNH: jax.Array,
    k_BTKH: jax.Array,
    v_BTKH: jax.Array,
    plan: Plan | str,
    mesh: Mesh | AbstractMesh | None,
    *,
    mask: str = "causal",
    documents: jax.Array | None = None,
    decay: str = "1",
    features: str = "none",
    recurrence: str = CONSTANT,
    gates: Sequence[jax.Array] = (),
) -> jax.Array:
    """Attention by a plan's scheme, layout and kernel. Call it inside your own jit, and differentiate through it.

    The gradient is the scheme's own backward pass where it has one, else the transpose. Scores are scaled by
    head_dim ** -0.5; a plan with a linear attention kernel computes linear attention, without scaling. Exact: this is
    the program that `stripectl bench` times and checks.

    Args:
        q_BTNH: (batch, positions, heads, head_dim), as in jax.nn.dot_product_attention; float32 or bfloat16, with
            positions in the plan's layout (`positions`).
        k_BTKH, v_BTKH: (batch, positions, kv_heads, head_dim); kv_heads divides heads. Values may have another head
            size, which the output then has too.
        plan: a plan or its text, `ring/striped@ring=4,tensor=2`. It names a layout wherever its scheme has several,
            because the layout decides the order of the tokens that you pass. Without a mesh it takes the sizes of
            `mesh`, without a kernel the kernel of the devices, and without a tile the fastest tile by the table of the
            devices, as in `stripectl bench`.
        mesh: the mesh of the arrays: batch is sharded over its axes `data` and `fsdp`, positions over `ring` and the
            other axes of a sequence, heads over `tensor`. None: this is called inside your own shard_map over such
            axes, with one device's part of each array, and the plan names its mesh.
        mask: `causal`, `full`, or `sliding:4k`: each query sees 4k keys, its own included.
        documents: int32 (batch, documents), where several documents are packed in a sequence: the position at which
            each begins, ascending from 0, padded with the sequence's length. A query sees only the keys of its own
            document. Sharded like the batch, with a copy on every device of a sequence.
        decay: for linear attention, the factor by which a state decays per token: a number, or `per-head` for
            the decays of TransNormerLLM.
        features: for linear attention, the map of queries and keys: `none`, or `elu` (1 + elu).
        recurrence: for linear attention, the rule of a plan with the kernel `gated`: `gdn`, `kda`, `mamba2`, `gla` or
            `deltanet`. Queries and keys then have the same heads, and values may have more, in equal groups.
        gates: the arrays of the recurrence, float32, (batch, positions, value heads) or with a vector per head of
            keys: logarithms of gates, and with the delta rule the share of an old value that a new one replaces.

    Returns:
        (batch, positions, heads, head_dim) in the dtype of q, sharded over the axes as `mesh` says.

    Raises:
        BadInput: the plan is unknown, does not fit the mesh or cannot compute these shapes; the message has the reason.
    """
    plan, given = plan_on_mesh(plan, mesh), () if documents is None else (documents,)
    parts = (1, 1, 1) if mesh else tuple(map(plan.product, (BATCH_AXES, SEQUENCE_AXES, HEAD_AXES)))
    kept = {
        "attention": attention_of_plan(plan, recurrence),
        "decay": decay,
        "features": features,
        "recurrence": recurrence,
    }
    work = workload_of_arrays(q_BTNH, k_BTKH, v_BTKH, parts, bool(given), mask=mask, **kept)
    hardware = mesh_hardware(mesh)
    trains = schemes[plan.scheme].query_sharding == "all"  # then the caller may differentiate
    plan = with_defaults(plan, replace(work, passes="forward-backward") if trains else work, hardware)
    if reason := why_unsupported(plan, work, hardware.kind):
        raise BadInput(f"{plan} cannot attend: {reason}")
    attend = attention_inside_shard_map(plan, work) if mesh is None else on_mesh(plan, work, mesh)
    if [x.shape[3:] for x in gates] != [shape for _, _, shape, _ in work.kv_shapes[2:]]:
        names = ", ".join(work.gated.gate_shapes(1)) if work.gated else "no gates"
        raise BadInput(f"{recurrence} needs the arrays {names} in gates, not {len(gates)} arrays of other shapes.")
    inner = (jnp.swapaxes(x, 1, 2) for x in (q_BTNH, k_BTKH, v_BTKH, *gates))
    return jnp.swapaxes(attend(*inner, *given), 1, 2)


def on_mesh(plan: Plan, workload: Workload, mesh: Mesh | AbstractMesh) -> Callable:
    """attention(q_BNTH, k_BKTH, v_BKTH, starts_BD if there are documents) -> out_BNTH, all global arrays, for a plan
    that names its tile and all sizes."""
    spec, attend = partition(plan), plan_attention(plan, workload, layer=True)
    of_keys = (PartitionSpec(*spec[: 3 + len(shape)]) for _, _, shape, _ in workload.kv_shapes)
    specs = (spec, *of_keys) + (PartitionSpec(spec[0]),) * (workload.documents is not None)
    mapped = jax.shard_map(attend, mesh=mesh, in_specs=specs, out_specs=spec, check_vma=False)
    if AxisType.Explicit not in mesh.axis_types:
        return mapped

    def laid(*arrays):
        return mapped(*(jax.reshard(x, NamedSharding(mesh, each)) for x, each in zip(arrays, specs, strict=True)))

    return laid


def positions(plan: Plan | str, seq_len: int, mesh: Mesh | AbstractMesh | None = None) -> np.ndarray:
    """int32 (seq_len,): the position in the text of each row of the arrays that a plan's attention takes.

    Permute tokens and targets once, `tokens[:, positions(plan, seq_len)]`, and use the same array wherever positions
    matter, such as in rotary embeddings; layers then move no tokens. `np.argsort` gives the inverse.

    Raises:
        BadInput: the plan is unknown, names no mesh while `mesh` is None, or cannot shard such a sequence.
    """
    plan = plan_on_mesh(plan, mesh)
    layout = layouts[plan.layout]
    if reason := layout.why_unsupported(seq_len, plan.shards):
        raise BadInput(reason)
    return layout.permutation(plan.shards, seq_len).astype(np.int32)


def plan_on_mesh(plan: Plan | str, mesh: Mesh | AbstractMesh | None) -> Plan:
    """The plan with its layout and the mesh's sizes; with None the plan's own mesh, which must equal the mesh of the
    surrounding shard_map.

    Raises:
        BadInput: they differ, neither has sizes, or the plan omits a layout of which its scheme has several.
    """
    plan = with_layout(parse_plan(plan) if isinstance(plan, str) else plan)
    if mesh is None:
        if plan.mesh is None:
            raise BadInput(f"{plan} names no sizes and there is no mesh. Write {plan}@ring=4, or pass a mesh.")
        return plan
    there: Mapping[str, int] = {axis: size for axis, size in mesh.shape.items() if size > 1}
    if strange := [axis for axis in there if axis not in AXES]:
        raise BadInput(
            f"the mesh has an axis {strange[0]}; plans have {', '.join(AXES)}. Rename it, or call this with mesh=None "
            f"inside your own shard_map."
        )
    if plan.mesh is None or not (plan.mesh or schemes[plan.scheme].axes):  # a scheme without axes names no mesh itself
        return replace(plan, mesh=make_mesh(there))
    if plan.axes != there:
        raise BadInput(f"{plan} is not for the mesh {', '.join(f'{axis}={size}' for axis, size in there.items())}.")
    return plan


def with_layout(plan: Plan) -> Plan:
    """The plan with its layout.

    Raises:
        BadInput: it omits the layout, and its scheme has several. A default would compute something else than a caller
            means whose tokens are in another order.
    """
    known = schemes[plan.scheme].layouts or layouts.names()
    if plan.layout or len(known) == 1:
        return replace(plan, layout=plan.layout or known[0])
    raise BadInput(
        f"cannot tell the order of the tokens because the plan {plan} names no layout. Write {plan.scheme}/"
        f"{schemes[plan.scheme].default_layout} and order the tokens by stripectl.positions, or for tokens in the "
        f"order of the text {plan.scheme}/contiguous."
    )


def attention_of_plan(plan: Plan, recurrence: str) -> str:
    """The attention that a plan computes: of its kernel, else linear where its scheme sends states or a recurrence is
    given, else softmax."""
    if plan.kernel:
        return kernels[plan.kernel].attention
    return "linear" if recurrence != CONSTANT or schemes[plan.scheme].sends_states else "softmax"


def mesh_hardware(mesh: Mesh | AbstractMesh | None) -> Hardware:
    """The machine of a mesh, or of the local devices where the mesh names none."""
    device = mesh.devices.flat[0] if isinstance(mesh, Mesh) else jax.devices()[0]
    return hardware_of_device(device.device_kind, device.platform)


def workload_of_arrays(q_BTNH, k_BTKH, v_BTKH, parts: Sequence[int], packed: bool, **kept: Any) -> Workload:
    """The workload of arrays that are shards over `parts` of batch, positions and heads; `kept` are fields as given.

    Raises:
        BadInput: their shapes or dtypes do not fit together.
    """
    shapes, dtypes = [x.shape for x in (q_BTNH, k_BTKH, v_BTKH)], {str(x.dtype) for x in (q_BTNH, k_BTKH, v_BTKH)}
    gated = kept.get("recurrence", CONSTANT) != CONSTANT
    rows_alike = len({shape[:2] for shape in shapes}) == 1 and shapes[1][:3] == shapes[0 if gated else 2][:3]
    if any(len(x) != 4 for x in shapes) or not rows_alike or shapes[0][3] != shapes[1][3] or len(dtypes) > 1:
        raise BadInput(
            f"queries, keys and values must be (batch, positions, heads, head_dim) of one dtype; queries may have more "
            f"heads, and values another head size, not {', '.join(map(str, shapes))} in {', '.join(sorted(dtypes))}."
        )
    (batch, rows, heads, head_dim), kv_heads = shapes[0], shapes[1][2]
    if gated:
        kept, heads, kv_heads = kept | {"key_heads": heads * parts[2]}, shapes[2][2], shapes[2][2]
    return Workload(
        seq_len=rows * parts[1],
        batch=batch * parts[0],
        heads=heads * parts[2],
        kv_heads=kv_heads * parts[2],
        head_dim=head_dim,
        v_head_dim=shapes[2][3],
        dtype=dtypes.pop(),
        documents=(rows * parts[1],) if packed else None,
        **kept,
    )


def attention_inside_shard_map(plan: Plan, workload: Workload) -> Callable:
    """attention(q_BNTH, k_BKTH, v_BKTH, starts_BD if there are documents) -> out_BNTH on one device, inside a shard_map
    whose axes are the plan's.

    Raises:
        BadInput: the axes differ.
    """
    for axis, size in plan.axes.items():
        try:
            found = lax.axis_size(axis)
        except NameError:
            raise BadInput(f"the surrounding shard_map has no axis {axis}, which {plan} needs.") from None
        if found != size:
            raise BadInput(f"{plan} needs {axis}={size}, but the surrounding shard_map has {axis}={found}.")
    return plan_attention(plan, workload, layer=True)
