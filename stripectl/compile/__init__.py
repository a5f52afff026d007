"""Backend: plans compiled ahead of time for devices that are described, and the time predicted from that."""
