"""Reads XLA profiles: how much communication is hidden, by device, hop and axis."""
