"""The compilers that can be here without their machines: what each needs, whether it fits this JAX, and how it is run.

Their processes are told not to look for devices: a process that owns a TPU aborts where it describes another one.
The GPU compiler runs programs of CUDA's and reads its library of functions; both come as wheels, so that no CUDA
toolkit has to be on the machine.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from stripectl.errors import BadInput
from stripectl.hardware.target import Target
from stripectl.results.environment import version

# What every NVIDIA GPU of these generations has (CUDA C++ programming guide, "Compute Capabilities").
CUDA_LIMITS = {
    "threads_per_block_limit": 1024,
    "threads_per_warp": 32,
    "threads_per_core_limit": 2048,
    "shared_memory_per_block": 49152,
    "block_dim_limit_x": 2**31 - 1,
    "block_dim_limit_y": 65535,
    "block_dim_limit_z": 65535,
    "registers_per_core_limit": 65536,
    "registers_per_block_limit": 65536,
}


@dataclass(frozen=True)
class Toolchain:
    """The compiler for a kind of hardware: `packages` as (package, the one whose requirement it must meet)."""

    kind: str
    packages: tuple[tuple[str, str], ...]
    extra: str  # of jax, that installs it
    target: str  # a small one, to try whether the compiler works
    variables: Mapping[str, str] = field(default_factory=dict)  # of the process that compiles
    wheels: tuple[str, ...] = ()  # of NVIDIA's, that bring `files`
    files: tuple[str, ...] = ()  # of a CUDA toolkit, that the compiler runs or reads

    @property
    def name(self) -> str:
        package = self.packages[0][0]
        return f"{package} {version(package)}"

    @property
    def remedy(self) -> str:
        return " ".join(["pip install", f"'jax[{self.extra}]=={version('jax')}'", *self.wanted_wheels])

    @property
    def wanted_wheels(self) -> list[str]:
        return [f"'{requirement(wheel, 'stripectl', 'cuda-compiler') or wheel}'" for wheel in self.wheels]

    @property
    def missing(self) -> str | None:
        """Why it cannot compile here, with the command that mends it, or None. That nothing is missing does not prove
        that it works: `stripectl doctor` compiles a program."""
        for package, requirer in self.packages:
            found, wanted = version(package), requirement(package, requirer, self.extra)
            if found is None:
                return f"{package} is not installed. Run: {self.remedy}"
            if wanted and not wanted.specifier.contains(found, prereleases=True):
                need = f"{requirer} {version(requirer)} needs {package}{wanted.specifier}"
                return f"{package} {found} is installed and {need}. Run: {self.remedy}"
        if self.files and cuda_root(self.files) is None:
            names = ", ".join(Path(file).name for file in self.files)
            return f"CUDA's {names} are not installed. Run: pip install {' '.join(self.wanted_wheels)}"
        return None

    @property
    def environment(self) -> dict[str, str]:
        """What is set in the environment of the process that compiles."""
        root = cuda_root(self.files) if self.files else None
        return {**self.variables, **({"CUDA_ROOT": str(root)} if root else {})}


def cuda_root(files: Sequence[str]) -> Path | None:
    """The first folder that holds all the files: CUDA_ROOT, which JAX reads too, NVIDIA's wheels, or a CUDA toolkit
    where its installer puts it."""
    wheels = find_spec("nvidia")
    folders = [
        *filter(None, [os.environ.get("CUDA_ROOT")]),
        *(Path(folder, "cu13") for folder in (wheels and wheels.submodule_search_locations) or ()),
        "/usr/local/cuda",
    ]
    return next((Path(each) for each in folders if all(Path(each, file).is_file() for file in files)), None)


def requirement(package: str, requirer: str, extra: str) -> Requirement | None:
    """What `requirer`, with its extra, asks of a package."""
    try:
        texts = metadata.requires(requirer) or []
    except metadata.PackageNotFoundError:
        return None
    wanted = [Requirement(text) for text in texts]
    fits = (
        each for each in wanted if each.name == package and (not each.marker or each.marker.evaluate({"extra": extra}))
    )
    return next(fits, None)


# There is no GPU to tune on; untuned, its compiler gives some matmuls to Triton in tiles that it then cannot make.
UNTUNED = "--xla_gpu_autotune_level=0 --xla_gpu_enable_triton_gemm=false"
NO_DEVICES = {"JAX_PLATFORMS": "cpu", "JAX_ENABLE_COMPILATION_CACHE": "false"}

TOOLCHAINS = {
    "tpu": Toolchain(
        "tpu",
        packages=(("libtpu", "jax"),),
        extra="tpu",
        target="v5e:2x2",
        # It asks a metadata server for the TPU it runs on, and locks out a second process of the same machine.
        variables=NO_DEVICES | {"TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"},
    ),
    "gpu": Toolchain(
        "gpu",
        packages=(("jax-cuda13-plugin", "jax"), ("jax-cuda13-pjrt", "jax-cuda13-plugin")),
        extra="cuda13-local",
        target="h100:1",
        wheels=("nvidia-cuda-nvcc", "nvidia-nvvm"),
        files=("bin/ptxas", "bin/nvlink", "nvvm/libdevice/libdevice.10.bc"),
        # Autotuning times candidates on the device that is not there.
        variables=NO_DEVICES | {"XLA_FLAGS": UNTUNED},
    ),
}


def topology_arguments(target: Target) -> dict[str, Any]:
    """What `jax.experimental.topologies.get_topology_desc` is called with to describe the target's devices.

    Raises:
        BadInput: the target cannot be described to a compiler.
    """
    hardware = target.hardware
    if hardware.kind == "tpu":
        return target.topology_arguments
    if hardware.kind != "gpu" or "compute_capability" not in hardware.compiler:
        raise BadInput(f"no compiler knows {target}: its profile has no compiler. Try --method simulated.")
    return {
        "platform": "cuda",
        "topology_name": "",
        "topology": f"{target.slices}x1x{target.slice_devices}",
        "target_config": target_config(hardware.device_kinds[0], hardware.compiler),
    }


def target_config(name: str, compiler: Mapping[str, Any]) -> str:
    """A GPU in the text form that XLA's GpuTargetConfigProto has."""
    major, minor = str(compiler["compute_capability"]).split(".")
    numbers = CUDA_LIMITS | {key: value for key, value in compiler.items() if key != "compute_capability"}
    info = " ".join(f"{key}: {value}" for key, value in numbers.items())
    capability = f"cuda_compute_capability {{ major: {major} minor: {minor} }}"
    return f'gpu_device_info {{ {info} {capability} }} platform_name: "CUDA" device_description_str: "{name}"'
