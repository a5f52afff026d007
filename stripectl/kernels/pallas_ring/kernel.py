"""The kernels of `pallas_tpu`, each with a hop inside."""

from stripectl.kernels.pallas_tpu.kernel import EMPTY, backward, forward

__all__ = ["EMPTY", "backward", "forward"]
