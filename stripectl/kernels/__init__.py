"""The kernels, one folder each; `stripectl.core.kernel.kernels` finds them by listing this folder."""
