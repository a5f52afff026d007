"""How a number was obtained."""

from typing import Literal, get_args

Method = Literal["measured", "compiled", "simulated"]
METHODS: tuple[str, ...] = get_args(Method)
