"""Backend: simulated schemes, and the cost models behind them."""
