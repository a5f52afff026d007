"""The nodes of a Ray cluster that a command uses: whole TPU slices, else the nodes with GPUs, else all nodes."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stripectl.errors import Missing

SLICE, WORKER, TOPOLOGY = "ray.io/tpu-slice-name", "ray.io/tpu-worker-id", "ray.io/tpu-topology"  # labels of TPU nodes
HEAD = "-head"  # the end of the resource that the first host of a TPU slice has, for programs that take the whole slice


@dataclass(frozen=True)
class RayNode:
    """A node of the cluster: its address, its resources, and its labels."""

    identity: str
    address: str
    resources: Mapping[str, float]
    labels: Mapping[str, str]

    @property
    def accelerator(self) -> str:
        return next((name for name in ("TPU", "GPU") if self.resources.get(name)), "CPU")

    @property
    def bundle(self) -> dict[str, float]:
        """The resources to reserve: all its accelerators, or all its processors."""
        head = {name: 1.0 for name in self.resources if name.startswith("TPU-") and name.endswith(HEAD)}
        return {self.accelerator: self.resources[self.accelerator], **head}


def choose_nodes(nodes: Sequence[RayNode], count: int | None = None) -> list[RayNode]:
    """The nodes to use, in the order of their hosts: a whole TPU slice, else all nodes with GPUs, else all nodes. With
    a `count`, as many nodes as that; for TPUs, whole slices of one topology.

    Raises:
        Missing: there are not so many.
    """
    for accelerator in ("TPU", "GPU", "CPU"):
        usable = [node for node in nodes if node.accelerator == accelerator and node.resources.get(accelerator)]
        if usable:
            return whole_slices(usable, count) if accelerator == "TPU" else equal_nodes(usable, count)
    raise Missing("the Ray cluster has no node. Run ray status.")


def equal_nodes(nodes: Sequence[RayNode], count: int | None) -> list[RayNode]:
    """Nodes that each have as many accelerators as the first."""
    name = nodes[0].accelerator
    ordered = sorted(nodes, key=lambda node: (-node.resources[name], node.address, node.identity))
    equal = [node for node in ordered if name == "CPU" or node.resources[name] == ordered[0].resources[name]]
    if count and count > len(equal):
        raise Missing(f"the Ray cluster has {len(equal)} nodes with {name}s, not {count}. Try --num-processes.")
    return equal[:count]


def whole_slices(nodes: Sequence[RayNode], count: int | None) -> list[RayNode]:
    """The hosts of TPU slices that are complete."""
    slices: dict[str, list[RayNode]] = {}
    for node in nodes:
        slices.setdefault(node.labels.get(SLICE, node.identity), []).append(node)
    whole = [sorted(each, key=worker_id) for each in slices.values() if is_whole(each)]
    if not whole:
        raise Missing("the Ray cluster has no complete TPU slice because nodes are missing. Run ray status.")
    whole.sort(key=lambda hosts: (-len(hosts), hosts[0].labels.get(SLICE, "")))
    alike = [hosts for hosts in whole if hosts[0].labels.get(TOPOLOGY) == whole[0][0].labels.get(TOPOLOGY)]
    wanted = count or len(whole[0])
    chosen = [node for hosts in alike for node in hosts][:wanted]
    if len(chosen) < wanted or wanted % len(whole[0]):
        raise Missing(
            f"the Ray cluster has {len(alike)} TPU slices of {len(whole[0])} nodes, so they cannot be {wanted} nodes. "
            f"Try --num-processes {len(whole[0])}."
        )
    return chosen


def worker_id(node: RayNode) -> int:
    return int(node.labels.get(WORKER, 0))


def is_whole(hosts: Sequence[RayNode]) -> bool:
    topology = hosts[0].labels.get(TOPOLOGY)
    return topology is None or sum(node.resources["TPU"] for node in hosts) >= math.prod(map(int, topology.split("x")))
