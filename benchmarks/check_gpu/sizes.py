"""What the parts compute on a GPU, and on another device, where they only show that they run."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jax

from stripectl.core.kernel import kernels
from stripectl.core.plan import parse_plan
from stripectl.core.workload import Workload
from stripectl.hardware.profile import Hardware, hardware_of_device
from stripectl.kernels.tokamax_gpu import about as tokamax_gpu

HEADS, HEAD_DIM, DTYPE = 8, 128, "bfloat16"
THREADS, BATCH = 8, 16  # programs that are compiled at the same time, and before they are timed
Job = TypeVar("Job")


class Sizes(NamedTuple):
    """Rows of what is timed: square block pairs, few queries beside many keys, sides of tiles, a whole sequence, and a
    step of two layers of a model."""

    blocks: tuple[int, ...]
    queries: tuple[int, ...]
    keys: int
    other_heads: tuple[int, ...]  # of pairs with heads of other sizes
    tiles: tuple[int, ...]
    chunks: tuple[int, ...]  # of a recurrence
    sequence: int
    ring: int  # of the simulated ring of 8
    model: str
    step: int
    matrices: tuple[int, ...]  # rows that are multiplied with the matrices of `shapes`
    shapes: tuple[tuple[int, int], ...]
    verified: int


ON_GPU = Sizes(
    blocks=(2**11, 2**12, 2**13, 2**14, 2**15),
    queries=(256, 1024),
    keys=2**14,
    other_heads=(2**12, 2**14),
    tiles=(512, 1024, 2048),
    chunks=(2**12, 2**13),
    sequence=2**15,
    ring=2**17,
    model="1b",
    step=2**12,
    matrices=(1024, 4096, 16384),
    # Inputs and outputs of the matrices of 1b and llama3-8b: attention's, feed-forward's, the head's.
    shapes=((2048, 2048), (2048, 5504), (5504, 2048), (2048, 32000), (4096, 4096), (4096, 14336), (14336, 4096)),
    verified=2**12,
)
ELSEWHERE = Sizes(
    blocks=(256,),
    queries=(64,),
    keys=256,
    other_heads=(256,),
    tiles=(128,),
    chunks=(128,),
    sequence=512,
    ring=2**11,
    model=str(Path(__file__).with_name("small-llama.yaml")),
    step=256,
    matrices=(64, 128),
    shapes=((128, 256),),
    verified=256,
)


def sizes_here() -> Sizes:
    """The sizes for the kind of device that JAX finds."""
    return ON_GPU if jax.default_backend() == "gpu" else ELSEWHERE


def hardware_here() -> Hardware:
    """The machine of the device that JAX finds."""
    device = jax.devices()[0]
    return hardware_of_device(device.device_kind, device.platform)


def kernels_here() -> list[str]:
    """The kernels that run on this platform, of those that are checked."""
    if jax.default_backend() != "gpu":
        return ["xla"]
    work = Workload(seq_len=2**12, heads=HEADS, kv_heads=HEADS, head_dim=HEAD_DIM, dtype=DTYPE)
    major, minor = map(int, jax.devices()[0].compute_capability.split("."))
    why_not = tokamax_gpu.why_unsupported(work, None, "gpu", (major, minor))
    return ["xla", "cudnn", *([] if why_not else ["tokamax_gpu"])]


def takes(kernel: str, head_dim: int, v_head_dim: int) -> bool:
    """Whether a kernel computes heads of these sizes here."""
    shape = {"seq_len": 2**12, "heads": HEADS, "kv_heads": HEADS, "dtype": DTYPE}
    work = Workload.from_json({**shape, "head_dim": head_dim, "v_head_dim": v_head_dim})
    plan, here = parse_plan(f"ring/contiguous/{kernel}@ring=1"), hardware_here()
    return kernels[kernel].why_unsupported(work, plan, here.kind, here.capability) is None


def normal(*shapes: tuple[int, ...], dtype: str = DTYPE) -> list[jax.Array]:
    """Normal numbers of these shapes, always the same."""
    keys = jax.random.split(jax.random.key(0), len(shapes))
    return [jax.random.normal(key, shape, dtype) for key, shape in zip(keys, shapes, strict=True)]


def in_batches(jobs: Sequence[Job], compiled: Callable[[Job], Any]) -> Iterator[tuple[Job, Any]]:
    """The jobs with their programs, some of which are compiled at the same time. None is compiled while a job is given
    out, because the compiler of a GPU times its candidates on it."""
    with ThreadPoolExecutor(THREADS) as threads:
        for first in range(0, len(jobs), BATCH):
            batch = jobs[first : first + BATCH]
            yield from zip(batch, list(threads.map(compiled, batch)), strict=True)


def compiled(function: Callable[..., Any], *inputs: Any) -> tuple[Any, ...]:
    """A compiled function and its inputs."""
    return jax.jit(function).lower(*inputs).compile(), *inputs
