"""A transformer under a plan: its attention for anybody's code, a decoder, and the training step."""
