"""Backend: plans timed on the local devices."""
