"""Differences between versions of JAX and tokamax, and every private name of them that stripectl uses. No other module
uses one.

A name is looked up inside a function, so importing this module does not import JAX. Each lookup checks that the name
accepts stripectl's arguments, and is a probe: `stripectl doctor` runs all of them in a child process.
"""

import importlib.util
import inspect
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import Any, NamedTuple

from packaging.version import Version

from stripectl.errors import Missing

# Versions with which stripectl's tests have passed: (Python, JAX, libtpu), with the libtpu that JAX's extras pin.
TESTED = (
    ("3.11", "0.10.2", "0.0.42.1"),
    ("3.12", "0.12.0.1", "0.0.50.1"),
    ("3.13", "0.12.0.1", "0.0.50.1"),
    ("3.14", "0.12.0.1", "0.0.50.1"),
)


TOKAMAX_NEEDS = {"tokamax": "0.0.17", "jax": "0.11.1"}  # the oldest versions
TOKAMAX_PYTHON = (3, 12)
# The folder of its splash attention, from 0.0.18.dev20261026 on and in 0.0.17, which are the versions under test.
TOKAMAX_SPLASH = "tokamax._src.ops.splash_attention", "tokamax._src.ops.experimental.tpu.splash_attention"


class JaxProbe(NamedTuple):
    """The devices of JAX by kind, and for each part of stripectl that uses private names, why it does not work here, or
    None."""

    devices: dict[str, int]
    parts: dict[str, str | None]


class Splash(NamedTuple):
    """JAX's splash attention: its module, the type of the arrays that describe a mask, and the two kernels of its
    backward pass, which take the log-sum-exp."""

    library: Any
    MaskInfo: Any
    backward_dq: Any
    backward_dkv: Any


@dataclass(frozen=True)
class Cudnn:
    """JAX's primitives for cuDNN attention. `options` are arguments that a version takes and stripectl leaves unset."""

    forward: Any
    backward: Any
    layout: int  # of (batch, heads, rows, head_dim)
    masks: Mapping[bool, Any]  # by whether the mask is causal
    options: Mapping[str, None]


def splash() -> Splash:
    """Splash attention. JAX's public function cannot give its log-sum-exp to the backward pass.

    Raises:
        Missing: this version of JAX has no such functions.
    """
    try:
        from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as library
        from jax.experimental.pallas.ops.tpu.splash_attention.splash_attention_mask_info import MaskInfo

        backward = library._splash_attention_bwd_dq, library._splash_attention_bwd_dkv
        for kernel in backward:
            accepts_arguments(kernel, {"logsumexp", "do", "di", "mask_info"})
    except (ImportError, AttributeError) as error:
        raise missing_jax_names("kernel splash", "Try --kernel xla.", error) from error
    return Splash(library, MaskInfo, *backward)


class Tokamax(NamedTuple):
    """tokamax's splash attention: its module, the type of the arrays that describe a mask, and the kernel of each
    pass."""

    library: Any
    MaskInfo: Any
    forward: Any
    backward: Any


class TokamaxGpu(NamedTuple):
    """tokamax's attention on Hopper GPUs: the modules of its passes, and the type of its masks."""

    forward: Any
    backward: Any
    Mask: Any


def why_no_tokamax(other: str) -> tuple[str, str] | None:
    """(why the library tokamax cannot run in this installation, a remedy or the kernel `other`); None where it can."""
    install = f"pip install 'stripectl[tokamax]', or --kernel {other}."
    if sys.version_info < TOKAMAX_PYTHON:
        oldest = ".".join(map(str, TOKAMAX_PYTHON))
        return f"tokamax needs Python {oldest} or newer", f"Try Python {oldest} and there {install}"
    for package, oldest in TOKAMAX_NEEDS.items():
        try:
            found = metadata.version(package)
        except metadata.PackageNotFoundError:
            return f"{package} is not installed here, and the kernel needs it", f"Try {install}"
        if Version(found) < Version(oldest):
            return f"tokamax needs {package} {oldest} or newer, and {found} is installed here", f"Try {install}"
    return None


def tokamax() -> Tokamax:
    """tokamax's splash attention. Its public function cannot give its log-sum-exp to the backward pass.

    Raises:
        Missing: it is not installed, or has no such functions.
    """
    check_tokamax("pallas_tpu")
    try:
        folder = next(filter(importlib.util.find_spec, TOKAMAX_SPLASH), TOKAMAX_SPLASH[0])
        library = importlib.import_module(f"{folder}.splash_attention_kernel")
        mask_info = importlib.import_module(f"{folder}.splash_attention_mask_info").MaskInfo
        both = library._splash_attention_forward, library._splash_attention_bwd_dkv
        accepts_arguments(both[0], {"mask_info", "config", "mask_function", "save_residuals", "fwd_mask_sparsity"})
        accepts_arguments(both[1], {"logsumexp", "do", "di", "mask_info", "config", "dkv_mask_sparsity"})
    except (ImportError, AttributeError) as error:
        raise missing_tokamax("tokamax", "pallas_tpu", error) from error
    return Tokamax(library, mask_info, *both)


def tokamax_gpu() -> TokamaxGpu:
    """tokamax's attention on Hopper GPUs. Its public function looks for a GPU before it is compiled for one, and cannot
    give its log-sum-exp to the backward pass.

    Raises:
        Missing: it is not installed, or has no such functions.
    """
    check_tokamax("cudnn")
    try:
        folder = "tokamax._src.ops.attention"
        forward = importlib.import_module(f"{folder}.pallas_mosaic_gpu_kernel_sm90")
        backward = importlib.import_module(f"{folder}.pallas_mosaic_gpu_vjp_kernel_sm90")
        found = TokamaxGpu(forward, backward, importlib.import_module(f"{folder}.base").Mask)
        both = forward.flash_attention_kernel, backward.flash_attention_vjp_kernel
        accepts_arguments(both[0], {"k_end", "is_causal", "return_residuals", "use_stable_softmax", "config"})
        accepts_arguments(both[1], {"residuals", "out", "dout", "k_end", "is_causal", "config"})
        for each in (forward, backward):
            accepts_arguments(each.get_heuristics_config, {"ba"})
    except (ImportError, AttributeError) as error:
        raise missing_tokamax("tokamax_gpu", "cudnn", error) from error
    return found


def check_tokamax(other: str) -> None:
    """Check that tokamax can run in this installation.

    Raises:
        Missing: it cannot.
    """
    if why := why_no_tokamax(other):
        raise Missing(". ".join(why))


def missing_tokamax(kernel: str, other: str, error: Exception) -> Missing:
    found, known = metadata.version("tokamax"), TOKAMAX_NEEDS["tokamax"]
    return Missing(
        f"kernel {kernel} uses private names of tokamax, and tokamax {found} has others: {error}. Try pip install "
        f"'tokamax=={known}', or --kernel {other}."
    )


CUDNN_ARRAYS = ("query", "key", "value", "bias", "q_seqlen", "kv_seqlen", "q_offsets", "kv_offsets", "page_table_k")
CUDNN_OPTIONS = {"scale", "seed", "dropout_rate", "variadic_args", "mask_type", "layout", "sliding_window_length"}
SCORE_MOD = {"score_mod_name", "score_mod_jaxpr"}  # from JAX 0.12 on: a function of the scores, None by default


def cudnn() -> Cudnn:
    """cuDNN attention with a backward pass for a part of the keys, which JAX's public function does not have.

    Raises:
        Missing: this version of JAX has no such primitives, or they take other arguments.
    """
    try:
        from jax._src.cudnn import fused_attention_stablehlo as library

        passes = library._dot_product_attention_fwd_cuda_lowering, library._dot_product_attention_bwd_cuda_lowering
        for private, own in zip(passes, ({"is_training"}, set[str]()), strict=True):
            accepts_arguments(private, {*CUDNN_ARRAYS, *CUDNN_OPTIONS, *own})
        names = set(inspect.signature(passes[1]).parameters)
        known = {*CUDNN_ARRAYS, *CUDNN_OPTIONS, *SCORE_MOD, "ctx", "page_table_v", "score_mod_args"}
        if unknown := sorted(names - known - {"activation", "fwd_output", "grad_output"}):
            raise AttributeError(f"{passes[1].__name__} takes {', '.join(unknown)} besides")
        return Cudnn(
            library._dot_product_attention_fwd_p,
            library._dot_product_attention_bwd_p,
            library.AttentionLayout.BNTH.value,
            {False: library.MaskType.NO_MASK, True: library.MaskType.CAUSAL},
            dict.fromkeys(sorted(SCORE_MOD & names)),
        )
    except (ImportError, AttributeError) as error:
        raise missing_jax_names("kernel cudnn", "Try --kernel xla.", error) from error


def cluster() -> Callable[[int], tuple[Any, ...]]:
    """How `jax.distributed` detects the hosts of TPU pods, SLURM, Open MPI and Kubernetes: a function of a time limit
    in seconds that returns (address of host 0, number of hosts, index of this host, ...).

    Raises:
        Missing: this version of JAX has no such function.
    """
    try:
        from jax._src.clusters import ClusterEnv

        found = ClusterEnv.auto_detect_unset_distributed_params
        accepts_arguments(found, {"initialization_timeout"})
    except (ImportError, AttributeError) as error:
        raise missing_jax_names(
            "finding hosts", "Name them: --coordinator, --num-processes and --process-id.", error
        ) from error
    return lambda limit_s: found(None, None, None, None, None, limit_s)


def pallas_interpreter() -> Any:
    """The module that runs Pallas TPU kernels on CPU; its `races` say whether a kernel read data before it arrived.

    Raises:
        Missing: this version of JAX has no such module.
    """
    try:
        from jax._src.pallas.mosaic.interpret import interpret_pallas_call as library
    except ImportError as error:
        raise missing_jax_names("the test of races", "Omit it.", error) from error
    return library


PROBES: dict[str, Callable[[], Any]] = {
    "kernel splash": splash,
    "kernel cudnn": cudnn,
    "kernel tokamax": tokamax,
    "kernel tokamax_gpu": tokamax_gpu,
    "finding hosts": cluster,
    "the test of races": pallas_interpreter,
}


def keep_barriers_on_cpu() -> dict[str, str]:
    """Compiler flags for a partly unrolled loop on CPU. XLA before jaxlib 0.11 drops barriers before it orders a
    program, so rounds mix, copy what they send, and no compute runs during a hop; outside a loop some does, if rounds
    may mix. From 0.11 on the order needs no more memory without barriers."""
    return {"xla_disable_hlo_passes": "cse_barrier_expander"} if is_older("jaxlib", "0.11") else {}


def is_older(package: str, release: str) -> bool:
    """Whether the installed version of a package is older than a release."""
    return Version(metadata.version(package)) < Version(release)


def accepts_arguments(function: Any, names: set[str]) -> None:
    """Check that a function accepts arguments with these names.

    Raises:
        AttributeError: it does not.
    """
    if without := sorted(names - set(inspect.signature(function).parameters)):
        raise AttributeError(f"{function.__name__} takes no {', '.join(without)}")


def missing_jax_names(part: str, remedy: str, error: Exception) -> Missing:
    """The error of a part of stripectl that uses private names of JAX, for a JAX that has others."""
    tested = sorted({jax for _, jax, _ in TESTED})
    return Missing(
        f"{part} uses names that are private in JAX, and JAX {metadata.version('jax')} has others: {error}. {remedy} "
        f"stripectl is tested with JAX {', '.join(tested)}."
    )


def probe_jax() -> JaxProbe:
    """Its devices, and the private names that work here. JAX starts its devices, which ends this process if the
    environment holds a flag that XLA does not know."""
    import jax

    devices = Counter(device.device_kind for device in jax.devices())

    def reason(lookup: Callable[[], Any]) -> str | None:
        try:
            lookup()
        except Missing as error:
            return str(error)
        return None

    return JaxProbe(dict(devices), {part: reason(lookup) for part, lookup in PROBES.items()})
