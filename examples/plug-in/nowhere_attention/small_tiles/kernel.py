"""The functions of the kernel, which are the functions of xla."""

from stripectl.kernels.xla.kernel import EMPTY, backward, forward

__all__ = ["EMPTY", "backward", "forward"]
