"""A model by its name, or from its file: a YAML file, as those in `profiles/models/`, or a config.json."""

import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from stripectl.core.architecture import FIELDS, Architecture
from stripectl.core.layer_kinds import read_mask_runs
from stripectl.core.linear_attention import ATTENTIONS, LINEAR, LinearHeads, check_linear
from stripectl.core.model import SOFTMAX, Model, check_softmax, max_size
from stripectl.core.replacement import Replacement, checked_parameters, read_replacements
from stripectl.errors import BadInput
from stripectl.models.config_json import config_name, is_config, read_config
from stripectl.util.files import load_profile, profile_names, unknown_name

# Keys that a file may omit.
OPTIONAL = (
    *("key_heads", "d_conv", "linear_heads", "v_head_dim", "layer_masks", "replaced", "vector_parameters"),
    *SOFTMAX,
    *LINEAR,
    *FIELDS,
)

MADE = ("name", "other_parameters", "architecture")  # fields of a Model that have no key of their own


def load_model(name: str) -> Model:
    """A model by name, or from a YAML file, a config.json or the folder that holds it.

    Raises:
        BadInput: unknown name or architecture, missing or unknown field, or a value that is not a positive integer.
    """
    if is_config(Path(name)) and name not in profile_names("models"):
        path, config = Path(name), read_config(Path(name))
        return _checked(path, config_name(path), config.sizes, config.vector_parameters, config.replaced)
    path, content = load_profile("model", "models", name)
    given = {key: value for key, value in content.items() if key not in ("source", "name")}
    try:
        replaced = read_replacements(given.pop("replaced", ""))
        vectors = checked_parameters(given.pop("vector_parameters", 0), "vector_parameters")
    except BadInput as error:
        raise BadInput(f"the model {path}: {error}") from error
    return _checked(path, path.stem, given, vectors, replaced)


def _checked(path: Path, name: str, content: Mapping[str, Any], vectors: int, replaced: Sequence[Replacement]) -> Model:
    given: dict[str, Any] = dict(content)
    wanted = [field.name for field in fields(Model) if field.name not in (*MADE, *OPTIONAL)]
    for key in given:
        if key not in (*wanted, *OPTIONAL):
            raise unknown_name(f"field in the model {path}:", key, [*wanted, *OPTIONAL])
    for key in wanted:
        if key not in given:
            raise BadInput(f"the model {path} has no {key!r}. It needs: {', '.join(wanted)}.")
    for key in (*wanted, *({"key_heads", "v_head_dim", "d_conv"} & given.keys())):
        if type(given[key]) is not int or not 1 <= given[key] <= max_size(key):
            said = f"the model {path} has {key}: {reprlib.repr(given[key])}"
            raise BadInput(f"{said}, but it must be a positive integer of at most {max_size(key)}.")
    if "linear_heads" in given:
        given["linear_heads"] = LinearHeads.of(given["linear_heads"])
    linear = {key: str(given[key]) for key in LINEAR if key in given}
    try:
        if "layer_masks" in given:
            given["layer_masks"] = read_mask_runs(given["layer_masks"])
        architecture = Architecture.of({key: given.pop(key) for key in FIELDS if key in given})
        check_softmax(linear.get("attention", ATTENTIONS[0]), given.get("sinks", False), given.get("soft_cap"))
        check_linear(heads=given["kv_heads"], layers=given["layers"], d_conv=given.get("d_conv"), **linear)
    except BadInput as error:
        raise BadInput(f"the model {path}: {error}") from error
    given |= linear
    others = vectors + sum(each.parameters for each in replaced)
    return Model(name=name, other_parameters=others, architecture=architecture, replaced=tuple(replaced), **given)
