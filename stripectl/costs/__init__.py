"""The costs of tiles, hops and calls on a machine, and the default parts of plans that follow from them."""
