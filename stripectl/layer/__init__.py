"""A transformer under a plan: its attention for anybody's own code, a decoder of LLaMA's kind, and its training step.

attention (a plan's scheme inside somebody's jit) -> sharding (where arrays lie on a mesh) -> decoder (layers and the
losses of a sequence) -> training (a step with AdamW). JAX, flax and optax are imported by these, not here.
"""
