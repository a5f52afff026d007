"""A transformer under a plan: its attention for any program, a decoder, and the training step."""
