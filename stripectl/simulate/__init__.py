"""Backend: schemes on clocks, and the cost models that set them."""
