"""The compilers that work without their machines: requirements, compatibility with this JAX, and how to run them.

Their processes must not look for devices, because a process that owns a TPU aborts when it describes another.
The GPU compiler runs CUDA programs and reads a CUDA library; both come as wheels, so the machine needs no CUDA toolkit.
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
from stripectl.hardware.profile import Hardware
from stripectl.hardware.target import Target
from stripectl.results.environment import version

# Properties of every NVIDIA GPU of these generations (CUDA C++ programming guide, "Compute Capabilities").
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
    """The compiler for a kind of hardware: `packages` as (package, the package whose requirement it must fulfil)."""

    kind: str
    packages: tuple[tuple[str, str], ...]
    extra: str  # the extra of jax that installs it
    target: str  # a small target, to test whether the compiler works
    variables: Mapping[str, str] = field(default_factory=dict)  # of the process that compiles
    wheels: tuple[str, ...] = ()  # of NVIDIA, with `files`
    files: tuple[str, ...] = ()  # of a CUDA toolkit, which the compiler runs or reads

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
        """Why it cannot compile here, with the command that fixes it, or None. None does not prove that it works:
        `stripectl doctor` compiles a program."""
        for package, requirer in self.packages:
            found, wanted = version(package), requirement(package, requirer, self.extra)
            if found is None:
                return f"{package} is not installed. Run: {self.remedy}"
            if wanted and not wanted.specifier.contains(found, prereleases=True):
                need = f"{requirer} {version(requirer)} needs {package}{wanted.specifier}"
                return f"{package} {found} is installed, but {need}. Run: {self.remedy}"
        if self.files and cuda_root(self.files) is None:
            names = ", ".join(Path(file).name for file in self.files)
            return f"CUDA's {names} are not installed. Run: pip install {' '.join(self.wanted_wheels)}"
        return None

    @property
    def environment(self) -> dict[str, str]:
        """The variables in the environment of the process that compiles."""
        root = cuda_root(self.files) if self.files else None
        return {**self.variables, **({"CUDA_ROOT": str(root)} if root else {})}


def cuda_root(files: Sequence[str]) -> Path | None:
    """The first folder that holds all files: CUDA_ROOT, which JAX also reads, NVIDIA's wheels, or the folder where the
    CUDA toolkit's installer puts them."""
    wheels = find_spec("nvidia")
    folders = [
        *filter(None, [os.environ.get("CUDA_ROOT")]),
        *(Path(folder, "cu13") for folder in (wheels and wheels.submodule_search_locations) or ()),
        "/usr/local/cuda",
    ]
    return next((Path(each) for each in folders if all(Path(each, file).is_file() for file in files)), None)


def requirement(package: str, requirer: str, extra: str) -> Requirement | None:
    """The requirement of `requirer`, with its extra, for a package."""
    try:
        texts = metadata.requires(requirer) or []
    except metadata.PackageNotFoundError:
        return None
    wanted = [Requirement(text) for text in texts]
    fits = (
        each for each in wanted if each.name == package and (not each.marker or each.marker.evaluate({"extra": extra}))
    )
    return next(fits, None)


# No GPU is present for autotuning; without it, the GPU compiler gives some matmuls to Triton with tiles that fail.
UNTUNED = "--xla_gpu_autotune_level=0 --xla_gpu_enable_triton_gemm=false"
NO_DEVICES = {"JAX_PLATFORMS": "cpu", "JAX_ENABLE_COMPILATION_CACHE": "false"}

TOOLCHAINS = {
    "tpu": Toolchain(
        "tpu",
        packages=(("libtpu", "jax"),),
        extra="tpu",
        target="v5e:2x2",
        # It asks a metadata server for the local TPU, and locks out a second process on the same machine.
        variables=NO_DEVICES | {"TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"},
    ),
    "gpu": Toolchain(
        "gpu",
        packages=(("jax-cuda13-plugin", "jax"), ("jax-cuda13-pjrt", "jax-cuda13-plugin")),
        extra="cuda13-local",
        target="h100:1",
        wheels=("nvidia-cuda-nvcc", "nvidia-nvvm"),
        files=("bin/ptxas", "bin/nvlink", "nvvm/libdevice/libdevice.10.bc"),
        # Autotuning times candidates on the device, which is absent.
        variables=NO_DEVICES | {"XLA_FLAGS": UNTUNED},
    ),
}


def why_not_described(hardware: Hardware) -> str | None:
    """Why no compiler compiles for a machine that is not there, or None."""
    if not hardware.compiles:
        return f"no compiler knows {hardware.name} yet"
    if hardware.kind == "gpu" and hardware.capability is None:
        return f"the profile of {hardware.name} has no compiler section"
    return None


def check_described(target: Target) -> None:
    """Check that a compiler can compile for the target.

    Raises:
        BadInput: it cannot.
    """
    if why := why_not_described(target.hardware):
        raise BadInput(f"cannot compile for {target} because {why}. Try --method simulated.")


def topology_arguments(target: Target) -> dict[str, Any]:
    """The arguments of `jax.experimental.topologies.get_topology_desc` that describe the target's devices.

    Raises:
        BadInput: the target cannot be described to a compiler.
    """
    check_described(target)
    hardware = target.hardware
    if hardware.kind == "tpu":
        return target.topology_arguments
    return {
        "platform": "cuda",
        "topology_name": "",
        "topology": f"{target.slices}x1x{target.slice_devices}",
        "target_config": target_config(hardware),
    }


def target_config(hardware: Hardware) -> str:
    """A GPU in the text form of XLA's GpuTargetConfigProto."""
    name, memory = hardware.device_kinds[0], hardware.figure("hbm_bytes")
    numbers = CUDA_LIMITS | ({"device_memory_size": int(memory)} if memory else {})
    numbers |= {key: value for key, value in hardware.compiler.items() if key != "compute_capability"}
    info = " ".join(f"{key}: {value}" for key, value in numbers.items())
    major, minor = str(hardware.compiler["compute_capability"]).split(".")
    capability = f"cuda_compute_capability {{ major: {major} minor: {minor} }}"
    return f'gpu_device_info {{ {info} {capability} }} platform_name: "CUDA" device_description_str: "{name}"'
