"""The order in which a plan stores a sequence's tokens, and the lengths that it can store."""

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from jax.sharding import AbstractMesh, Mesh

from stripectl.core.layout import layouts
from stripectl.core.mesh import AXES, make_mesh
from stripectl.core.plan import Plan, parse_plan
from stripectl.core.scheme import schemes
from stripectl.errors import BadInput
from stripectl.training.arguments import PHRASES
from stripectl.util.python_words import python_words


@python_words(PHRASES)
def positions(plan: Plan | str, seq_len: int, mesh: Mesh | AbstractMesh | None = None) -> np.ndarray:
    """int32 (seq_len,): the position in the text of each row of the arrays that a plan's attention takes.

    Permute tokens, targets and segment ids once, `tokens[:, positions(plan, seq_len)]`, and use the same array wherever
    positions matter, such as in `rotary`; layers then move no tokens. `np.argsort` gives the inverse.

    Raises:
        BadInput: the plan is unknown, names no mesh while `mesh` is None, or cannot shard such a sequence.
    """
    plan = plan_on_mesh(plan, mesh)
    check_length(seq_len)
    layout = layouts[plan.layout]
    if reason := layout.why_unsupported(seq_len, plan.shards):
        raise BadInput(str(reason))
    return layout.permutation(plan.shards, seq_len).astype(np.int32)


@python_words(PHRASES)
def padded_length(plan: Plan | str, seq_len: int, mesh: Mesh | AbstractMesh | None = None) -> int:
    """The shortest length from `seq_len` tokens on that a plan can divide over its mesh.

    Put padding behind the text, `np.pad(tokens, ((0, 0), (0, padded_length(plan, seq_len) - seq_len)))`, before you
    permute tokens by `positions`, and omit it in the loss. Under a causal mask no token sees it; under a full mask
    make it a document of its own (`Packing.from_lengths`).

    Raises:
        BadInput: the plan is unknown, or names no mesh while `mesh` is None.
    """
    plan = plan_on_mesh(plan, mesh)
    check_length(seq_len)
    unit = math.lcm(layouts[plan.layout].pieces, plan.sequence_devices // plan.shards, plan.parts)
    length = -(-seq_len // (plan.shards * unit)) * plan.shards * unit
    rows = length // plan.sequence_devices
    if plan.chunk and rows > plan.chunk:
        unit = math.lcm(plan.shards * unit, plan.chunk * plan.sequence_devices)
        length = -(-seq_len // unit) * unit
    return length


def check_length(seq_len: object) -> None:
    if not isinstance(seq_len, int | np.integer) or isinstance(seq_len, bool) or seq_len < 1:
        raise BadInput(f"cannot order a sequence because its length is {seq_len!r:.40}. Try seq_len=1024.")


def plan_on_mesh(plan: Plan | str, mesh: Mesh | AbstractMesh | None) -> Plan:
    """Name the plan's layout, and give the plan the mesh's sizes; with None the plan keeps its own mesh, which must
    equal the mesh of the surrounding shard_map.

    Raises:
        BadInput: they differ, neither has sizes, or the plan omits a layout of which its scheme has several.
    """
    if not isinstance(plan, Plan | str):
        raise BadInput(f"cannot read a plan because it is a {type(plan).__name__}. Try 'ring/striped'.")
    if not isinstance(mesh, Mesh | AbstractMesh | None):
        raise BadInput(
            f"cannot use the mesh because it is a {type(mesh).__name__}. Try jax.make_mesh((4, 2), ('ring', 'tensor'))."
        )
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
        has = ", ".join(f"{axis}={size}" for axis, size in there.items()) or "of one device"
        raise BadInput(f"{plan} is not for the mesh {has}. Try {replace(plan, mesh=None)}, without sizes.")
    return plan


def with_layout(plan: Plan) -> Plan:
    """Name the plan's layout.

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
