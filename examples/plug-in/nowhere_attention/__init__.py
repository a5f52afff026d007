"""A scheme, a kernel and a machine for stripectl."""
