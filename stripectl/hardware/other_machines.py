"""Machines of makers that stripectl has no machine of: their names are refused with the way to plan for them."""

import re
from collections.abc import Collection

from stripectl.errors import BadInput
from stripectl.util.files import unknown_name

MAKERS = {  # the beginning of a name, in lower case -> what its maker calls it
    r"mi-?\d{2,3}|amd|instinct": "AMD Instinct GPU",
    r"trn\d|trainium|inf\d|inferentia": "AWS Trainium or Inferentia chip",
    r"gaudi|habana": "Intel Gaudi accelerator",
}
OWN_FILE = "stripectl.readthedocs.io, reference/hardware, 'A machine that is like no other'"


def why_other_machine(name: str) -> str | None:
    """Why a name of another maker is no machine, and what to do; None for other names."""
    beginning = name.lower().rpartition("*")[2]
    maker = next((kind for pattern, kind in MAKERS.items() if re.match(pattern, beginning)), None)
    if maker is None:
        return None
    return (
        f"cannot plan for {name!r} because stripectl has no {maker}. Try --hardware FILE with its figures ({OWN_FILE})."
    )


def unknown_machine(kind: str, name: str, known: Collection[str]) -> BadInput:
    """The error for the name of a machine that does not ship."""
    why = why_other_machine(name)
    return BadInput(why) if why else unknown_name(kind, name, known)
