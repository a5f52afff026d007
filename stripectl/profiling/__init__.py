"""Reads XLA profiles: how much communication hides behind compute, by device, hop and axis."""
