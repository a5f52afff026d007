"""Processes that touch devices, on one host or many. The parent never imports JAX."""
