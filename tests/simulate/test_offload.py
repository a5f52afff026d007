"""Values of a layer that wait in the host's memory: their bytes, their copies on the clock, and memory."""

import math
from dataclasses import replace

import jax
import pytest

from stripectl.core.kept import Kept
from stripectl.core.layer_groups import layer_groups
from stripectl.core.plan import Plan, parse_plan
from stripectl.core.scopes import ATTENTION, PROJECTIONS
from stripectl.core.workload import STEP, Workload
from stripectl.costs.cost_model import COUNTING
from stripectl.models.model_files import load_model
from stripectl.simulate.layer_attention import attention_times, layer_attention
from stripectl.simulate.step_clock import StepClock
from stripectl.simulate.step_memory import step_memory
from stripectl.simulate.step_program import run_step
from tests.support.jaxprs import walk
from tests.support.plans import why_refused
from tests.support.training import MODEL, training

LLAMA = load_model("llama3-8b")
WORK = Workload(seq_len=8192, batch=8, passes=STEP, model="llama3-8b", **LLAMA.step_sizes)
EVERY = "inputs+query+key+value+context+projection"
INPUT = 8192 * 4096 * 2  # bytes of a device's hidden states


def plan_of(options: str = "", mesh: str = "fsdp=8") -> Plan:
    return parse_plan(f"ring/contiguous/splash@{mesh},tile=1024{options and ','}{options}")


def counted(workload: Workload, plan: Plan) -> StepClock:
    groups = layer_groups(workload, plan)
    times = attention_times(groups, [COUNTING] * len(groups))
    attention = [layer_attention(*each) for each in zip(groups, times, strict=True)]
    return run_step(workload, plan, attention=attention)


@pytest.mark.parametrize("offload", ["inputs", "inputs+context", "query+key+value+projection", EVERY])
def test_a_program_copies_the_bytes_that_are_simulated(offload: str) -> None:
    """Every value travels once in each direction, in the program that JAX traces and on the clock."""
    run = training(f"ring/zigzag@fsdp=2,ring=2,tensor=2,chunk=4,offload={offload}", model=MODEL)
    jaxpr = jax.make_jaxpr(run.gradients)(run.abstract_parameters, run.abstract_batch).jaxpr
    moved = {"Host": 0, "Device": 0}
    for name, equation, times in walk(jaxpr):
        if name == "device_put":
            ((space,), (out,)) = equation.params["devices"], equation.outvars
            moved[space.name] += times * math.prod(out.aval.shape) * out.aval.dtype.itemsize
    simulated = counted(run.workload, run.plan).host_bytes
    assert moved == {"Host": simulated, "Device": simulated} and simulated > 0


def test_copies_hide_behind_the_layer_until_their_link_is_slower() -> None:
    """A layer of 0.1 s forward and 0.2 s backward, whose input takes 0.05 s or 0.5 s in each direction."""
    plan, own = plan_of("offload=inputs", "ring=1"), plan_of("", "ring=1")
    work = replace(WORK, batch=1)
    groups = layer_groups(work, own)
    (times,) = (layer_attention(group, attention_times([group], [COUNTING])[0]) for group in groups)
    attention = [
        times._replace(
            forward=times.forward._replace(seconds=0.1),
            again=times.forward._replace(seconds=0.0),
            backward=times.backward._replace(seconds=0.2),
        )
    ]
    alone, hidden, slow = (
        run_step(work, each, attention=attention, host_bytes_per_s=INPUT / seconds)
        for each, seconds in ((own, 0.05), (plan, 0.05), (plan, 0.5))
    )
    assert hidden.now == alone.now == pytest.approx(32 * 0.3) and alone.hidden_s == 0
    assert hidden.hidden_s == pytest.approx(32 * 2 * 0.05) and hidden.exposed_s == 0
    assert slow.now == pytest.approx(32 * 2 * 0.5) and slow.exposed_s == pytest.approx(32 * (0.4 + 0.3))
    assert slow.parts[ATTENTION] == alone.parts[ATTENTION]


def test_values_on_the_host_leave_the_device() -> None:
    """With its input on the host, a layer holds two inputs on the device: its own, and the next layer's."""
    most, least = (step_memory(WORK, plan_of(each), "tpu")["activations"] for each in ("", "offload=inputs"))
    assert most > 32 * INPUT and least <= 3 * INPUT
    assert counted(WORK, plan_of("offload=inputs")).host_bytes == 32 * INPUT


def test_kept_values_are_not_computed_again() -> None:
    """Products of a layer's projections: forward, again where nothing is kept, and two for each backward."""
    forward = 2 * 8192 * 4096 * (4096 + 2 * 1024 + 4096) * 32
    for options, times in (
        ("", 4),
        (f"offload={EVERY}", 3),
        ("remat=query+key+value+projection", 3),
        ("offload=query+key,remat=value+projection", 3),
    ):
        assert counted(WORK, plan_of(options)).flops[PROJECTIONS] == times * forward
    (group,) = layer_groups(WORK, plan_of("offload=context"))
    assert layer_attention(group, attention_times([group], [COUNTING])[0]).again is None


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ("offload=feed_forward", "keeping the value feed_forward has no effect"),
        ("remat=none,offload=projection", "keeping the value projection has no effect"),
        ("remat=query+key,offload=query", "remat=query has no effect because offload=query keeps the value"),
        ("offload=inputs+optimizer", "offload=optimizer is not built yet"),
    ],
)
def test_values_that_nothing_needs_are_refused(options: str, why: str) -> None:
    assert why in str(why_refused(plan_of(options), WORK, "tpu"))


def test_a_norm_after_the_feed_forward_needs_its_result() -> None:
    after = replace(WORK.architecture, norms="both")
    plan = plan_of(f"offload={Kept.FEED_FORWARD}")
    assert why_refused(plan, replace(WORK, architecture=after), "tpu") is None
