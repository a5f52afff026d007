"""Groups of equal layers: a case and its measurement know them."""

from stripectl.core.layer_groups import LayerGroup, by_layer_group, layer_groups
from stripectl.core.plan import parse_plan
from stripectl.core.workload import Workload
from stripectl.hardware.target import read_target
from stripectl.models.model_files import load_model
from stripectl.results.case import Case
from stripectl.results.measurement import Measurement

PLAN = "lasp/contiguous/chunked@ring=4,tile=256,softmax=ring/xla/512"
MODEL = "linear-llama-1b-hybrid"
HYBRID = Workload(seq_len=2**16, passes="step", model=MODEL, **load_model(MODEL).step_sizes)


def test_a_case_and_its_measurement_know_the_layers_of_a_hybrid_model() -> None:
    case = Case(workload=HYBRID, plan=parse_plan(PLAN), target=read_target("v5e:2x2"), method="simulated")
    assert case.layers == Measurement.of(case).layers == layer_groups(case.workload, case.plan)
    assert [(group.layers, group.workload.attention, group.plan.scheme) for group in case.layers] == [
        (12, "linear", "lasp"),
        (4, "softmax", "ring"),
    ]
    assert [str(group.plan.tile) for group in case.layers] == ["256x256", "512x512"]


def test_equal_layers_are_one_group_with_the_workload_and_its_plan() -> None:
    work, plan = Workload(seq_len=4096, heads=4, kv_heads=4, head_dim=16), parse_plan("ring@ring=4,tile=256")
    case = Case(workload=work, plan=plan, target=read_target("v5e:2x2"), method="simulated")
    assert case.layers == [LayerGroup(1, work, plan)]


def test_a_change_reaches_the_plan_of_each_group() -> None:
    plan = parse_plan(PLAN)
    seen = list[tuple[str, str]]()

    def change(workload, plan):
        seen.append((workload.attention, plan.scheme))
        return plan

    assert by_layer_group(HYBRID, plan, change) == plan
    assert seen == [("linear", "lasp"), ("softmax", "ring")]
