"""How a number was obtained."""

from typing import Literal, get_args

Method = Literal["measured", "compiled", "simulated"]
MethodChoice = Literal[Method, "auto"]  # auto: the strongest that the target and the budget allow
METHODS: tuple[str, ...] = get_args(Method)
