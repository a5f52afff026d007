"""Predictions compared with every published measurement that ships: attention on one device, the speed-ups of the
striped attention paper, MaxText's meshes."""
