"""The nodes of a Ray cluster that a command uses."""

import pytest

from stripectl.errors import Missing
from stripectl.workers.ray_nodes import SLICE, TOPOLOGY, WORKER, RayNode, choose_nodes


def node(name: str, labels: dict[str, str] | None = None, **resources: float) -> RayNode:
    return RayNode(name, f"10.0.0.{len(name)}", {"CPU": 8.0, **resources}, labels or {})


def tpu_slice(name: str, hosts: int = 2, topology: str = "2x4") -> list[RayNode]:
    """The nodes of a slice, the last worker first."""
    return [
        node(f"{name}{worker}", {SLICE: name, WORKER: str(worker), TOPOLOGY: topology}, TPU=4.0)
        for worker in reversed(range(hosts))
    ]


def names(nodes: list[RayNode]) -> list[str]:
    return [each.identity for each in nodes]


def test_a_whole_slice_comes_before_gpus_and_other_nodes() -> None:
    nodes = [node("cpu"), node("gpu", GPU=8.0), *tpu_slice("b"), *tpu_slice("a")]
    assert names(choose_nodes(nodes)) == ["a0", "a1"]
    assert names(choose_nodes(nodes, 4)) == ["a0", "a1", "b0", "b1"]


@pytest.mark.parametrize("count", [1, 3, 6])
def test_a_part_of_a_slice_is_refused(count: int) -> None:
    with pytest.raises(Missing, match=rf"2 TPU slices of 2 nodes, so they cannot be {count} nodes"):
        choose_nodes([*tpu_slice("a"), *tpu_slice("b")], count)


def test_a_slice_that_lacks_a_node_is_not_used() -> None:
    broken = tpu_slice("a")[:1]
    assert names(choose_nodes([*broken, *tpu_slice("b")])) == ["b0", "b1"]
    with pytest.raises(Missing, match="no complete TPU slice"):
        choose_nodes(broken)


def test_nodes_have_equally_many_gpus() -> None:
    nodes = [node("small", GPU=4.0), node("large", GPU=8.0), node("larger", GPU=8.0), node("cpu")]
    assert names(choose_nodes(nodes)) == ["large", "larger"]
    assert names(choose_nodes(nodes, 1)) == ["large"]
    with pytest.raises(Missing, match="2 nodes with GPUs, not 3"):
        choose_nodes(nodes, 3)


def test_the_head_of_a_slice_is_reserved_with_it() -> None:
    assert node("head", None, TPU=4.0, **{"TPU-v5e-8-head": 1.0}).bundle == {"TPU": 4.0, "TPU-v5e-8-head": 1.0}


def test_a_cluster_without_nodes_is_missing() -> None:
    with pytest.raises(Missing, match="has no node"):
        choose_nodes([])
