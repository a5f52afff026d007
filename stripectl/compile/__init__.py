"""Backend: plans compiled ahead of time for devices that are only described, and the time predicted from that."""
