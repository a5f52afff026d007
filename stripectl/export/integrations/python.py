"""Python: a program that computes a plan's attention, or trains with it, with this package."""

from collections.abc import Mapping, Sequence

from stripectl.core.layer_groups import layer_groups
from stripectl.core.mesh import BATCH_AXES, HEAD_AXES, SEQUENCE_AXES
from stripectl.core.plan import Plan
from stripectl.core.recurrence import LOG_GATE, WRITE
from stripectl.core.workload import STEP, Workload
from stripectl.export.integration import Integration, Job, Snippet
from stripectl.export.integrations.yaml import mask_in_place, not_in_profile
from stripectl.results.measurement import Measurement

SNIPPET = """\
import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
from stripectl import positions, sequence_parallel_attention

{plans}plan, seq_len = {plan}, {seq_len}
mesh = jax.make_mesh({sizes}, {axes}, (jax.sharding.AxisType.Auto,) * {count})
order = positions(plan, seq_len, mesh)  # permute tokens and targets by it once; use it as rotary positions
{documents}

@{jit}
def attend(q, k, v{arguments}):  # (batch, positions, heads, head_dim), in the plan's order; differentiable
    return sequence_parallel_attention(q, k, v, {plan_of_layer}, mesh, mask={mask}{given})


sharding = NamedSharding(mesh, PartitionSpec({batch_axes}, {sequence_axes}, {head_axes}))
q = jnp.ones(({batch}, seq_len, {heads}, {head_dim}), "{dtype}", device=sharding)
k = jnp.ones(({batch}, seq_len, {key_heads}, {head_dim}), "{dtype}", device=sharding)
v = jnp.ones(({batch}, seq_len, {kv_heads}, {value_dim}), "{dtype}", device=sharding)
{gates}print(attend(q, k, v{values}).sharding)
"""


TRAINING = """\
{imports}import numpy as np
from stripectl.training.step import make_training

training = make_training({model}, "{plan}", seq_len={seq_len}, batch={batch}, dtype="{dtype}"{mask})
state = training.init(seed=0)
tokens = np.zeros(({batch}, {seq_len} + 1), int)  # yours, in natural order; the last token is only a target
state, loss = training.step(state, training.place(tokens))
print(loss)
"""
GATE_VALUES = {LOG_GATE: "-0.01", WRITE: "0.5"}
GATE = "{name} = {value} * jnp.ones({shape}, device=sharding)\n"
CHANGING = "from dataclasses import replace\nfrom stripectl.models.model_files import load_model\n"


def snippet(work: Workload, plan: Plan) -> str:
    """A Python program that computes the plan's attention, or trains with it, on its number of devices."""
    if work.query_len:
        return "# Inference: use `stripectl bench`; the library function needs as many queries as keys.\n"
    return training_program(work, plan) if work.passes == STEP else attention_program(work, plan)


def training_program(work: Workload, plan: Plan) -> str:
    sizes = {"seq_len": work.seq_len, "batch": work.batch, "dtype": work.dtype}
    changes = "".join(f", {name}={value!r}" for name, value in not_in_profile(work).items())
    model = f"replace(load_model({work.model!r}){changes})" if changes else repr(work.model)
    mask = f", mask={own!r}" if (own := mask_in_place(work)) else ""
    return TRAINING.format(imports=CHANGING * bool(changes), model=model, plan=plan, mask=mask, **sizes)


def attention_program(work: Workload, plan: Plan) -> str:
    axes = plan.axes or {"ring": 1}
    starts = () if work.starts is None else tuple(work.starts.tolist())
    given = ", documents=documents" if starts else ""
    if work.attention == "linear":
        given = f', decay="{work.decay}", features="{work.features}"'
    given += f", soft_cap={work.soft_cap}" * bool(work.soft_cap) + ", sinks=sinks" * work.sinks
    shapes = work.gated.gate_shapes(work.head_dim) if work.gated else {}
    if shapes:
        named = ", ".join(f'"{name}": {name}' for name in shapes)
        given = f', recurrence="{work.recurrence}", gates={{{named}}}'
    by_layer = {
        "plans": "",
        "plan": quoted(str(plan)),
        "jit": "jax.jit",
        "plan_of_layer": "plan",
        "mask": quoted(work.mask),
        "arguments": "".join(f", {name}" for name in (*shapes, *["sinks"] * work.sinks)),
    }
    by_layer["values"] = by_layer["arguments"]
    if work.layer_masks:
        by_layer |= masks_of_calls(work, plan, by_layer["arguments"])
    return SNIPPET.format(
        **by_layer,
        seq_len=work.seq_len,
        sizes=tuple(axes.values()),
        axes=f"({', '.join(map(quoted, axes))}{',' * (len(axes) == 1)})",
        count=len(axes),
        given=given,
        documents=f"documents = jnp.array([{list(starts)}] * {work.batch})  # your starts\n" if starts else "",
        batch_axes=sharding_of(BATCH_AXES, axes),
        sequence_axes=sharding_of(SEQUENCE_AXES, axes),
        head_axes=sharding_of(HEAD_AXES, axes),
        batch=work.batch,
        heads=work.query_heads,
        key_heads=work.query_heads if work.gated else work.kv_heads,
        kv_heads=work.kv_heads,
        gates="".join(
            GATE.format(name=name, value=GATE_VALUES[name], shape=(work.batch, work.seq_len, work.heads, *shape))
            for name, shape in shapes.items()
        )
        + f'sinks = jnp.zeros({work.heads}, "float32")\n' * work.sinks,
        head_dim=work.head_dim,
        value_dim=work.value_dim,
        dtype=work.dtype,
    )


def masks_of_calls(work: Workload, plan: Plan, others: str) -> dict[str, str]:
    """The parts of a program whose calls have the mask of their layer after the other arguments."""
    own = {group.workload.mask: group.plan for group in layer_groups(work, plan)}
    entries = ", ".join(f"{quoted(mask)}: {quoted(str(each))}" for mask, each in own.items())
    first = quoted(next(iter(own)))
    return {
        "plans": f"plans = {{{entries}}}  # by the mask of a layer\n",
        "plan": f"plans[{first}]",
        "jit": 'jax.jit(static_argnames="mask")',
        "plan_of_layer": "plans[mask]",
        "mask": "mask",
        "arguments": f"{others}, mask",
        "values": f"{others}, {first}",
    }


def sharding_of(names: Sequence[str], axes: Mapping[str, int]) -> str:
    """The axes among `names` that a mesh has, in a PartitionSpec."""
    held = tuple(name for name in names if name in axes)
    return f"({', '.join(map(quoted, held))})" if len(held) > 1 else quoted(held[0]) if held else "None"


def quoted(name: str) -> str:
    return f'"{name}"'


def write(job: Job, m: Measurement) -> Snippet:
    return Snippet(snippet(job.work, job.plan), ["It needs stripectl and JAX on the devices of the plan."])


integration = Integration("Python", write)
