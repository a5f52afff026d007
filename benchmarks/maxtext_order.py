"""How JAX lays the meshes of MaxText's measured steps on 64 chips of v5p, which MaxText leaves to it.

python benchmarks/maxtext_order.py     # writes profiles/published/maxtext-order.json; needs jax[tpu], no TPU
"""

import json
import os

from stripectl.analysis.accuracy.meshes import ORDER_FILE, TARGET, published_plans
from stripectl.compile.toolchain import TOOLCHAINS, topology_arguments
from stripectl.hardware.target import parse_target
from stripectl.util.files import data_folder


def main() -> None:
    os.environ.update(TOOLCHAINS["tpu"].environment)
    from jax.experimental import mesh_utils, topologies

    devices = topologies.get_topology_desc(**topology_arguments(parse_target(TARGET))).devices
    index = {device.id: place for place, device in enumerate(devices)}
    orders = {}
    for plan in published_plans():
        # A ring or a group of 8 or 32 devices has no side of 4x4x4 to itself, so sides must be split.
        sizes = plan.size("ring"), plan.size("ulysses")
        grid = mesh_utils.create_device_mesh(sizes, devices, allow_split_physical_axes=True)
        orders["x".join(map(str, sizes))] = [index[device.id] for device in grid.reshape(-1)]
    lines = ",\n".join(f'"{mesh}": {order}' for mesh, order in orders.items())
    (data_folder("profiles") / "published" / ORDER_FILE).write_text(f"{{\n{lines}\n}}\n")
    print(json.dumps({mesh: order[:8] for mesh, order in orders.items()}))


if __name__ == "__main__":
    main()
