"""Machines: profiles, targets, and where a mesh lies on their links."""
