"""Predictions compared with every published measurement that ships: attention on one device, the striped attention paper's
speed-ups, MaxText's meshes."""
