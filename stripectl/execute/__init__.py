"""A scheme bound to JAX, and its check against float64 attention."""
