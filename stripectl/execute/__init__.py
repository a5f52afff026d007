"""A scheme bound to JAX, and its check against attention in float64."""
