"""Backend: plans timed on the devices that are here."""
