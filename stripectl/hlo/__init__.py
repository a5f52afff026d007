"""Reads what XLA printed: collectives, schedules, rewrites, and the LLO bundles of Pallas kernels."""
