"""The parts of a model as programs over `ops` and `comm`, without JAX, one file each."""
