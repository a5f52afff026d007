"""A model from the `config.json` next to its weights, the format of Hugging Face's libraries.

`language_model` finds the keys of the language model and the names of its family; the file of this family in
`families` explains the keys. A part of a model that stripectl does not compute is replaced by a part that it does
compute, and `Replacement` names both. Of an unknown family, `unknown_family` says which fields its keys give.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from stripectl.errors import BadInput
from stripectl.models.family import ConfigKeys, ModelConfig, families
from stripectl.models.language_model import family_name, language_model
from stripectl.models.unknown_family import unknown_family
from stripectl.util.files import printable
from stripectl.util.json import is_mapping
from stripectl.util.regular_files import read_bytes

CONFIG = "config.json"
MAX_CONFIG_BYTES = 2**24  # a list of modules that are not quantised may have megabytes


def read_config(path: Path) -> ModelConfig:
    """The model in a config.json, or in the folder that holds it.

    Raises:
        BadInput: the file is unreadable, its family is unknown, or a value is wrong.
    """
    path = path / CONFIG if os.path.isdir(path) else path
    language = language_model(path, load_json(path))
    name = family_name(language, families.names())
    if name is None:
        raise unknown_family(path, language.model_type, language.content)
    read, defaults, aliases = families[name]
    config = read(ConfigKeys(path, language.content, defaults, aliases))
    return replace(config, replaced=(*language.omitted, *config.replaced))


def load_json(path: Path) -> Mapping[str, Any]:
    """The mapping in a JSON file.

    Raises:
        BadInput: the file is missing, unreadable, too large, not JSON, or not a mapping.
    """
    try:
        content = printable(json.loads(read_bytes(path, MAX_CONFIG_BYTES)))
    except OSError as error:
        raise BadInput(f"cannot read the model {path}: {error.strerror}.") from error
    except RecursionError as error:
        raise BadInput(f"the model {path} is not JSON: its values are nested too deeply.") from error
    except ValueError as error:
        raise BadInput(f"the model {path} is not JSON: {error}.") from error
    if not is_mapping(content):
        raise BadInput(f"the model {path} is not a mapping of keys to values.")
    return content


def is_config(path: Path) -> bool:
    """Whether a path names a config.json, or a folder that may hold it."""
    return path.suffix == ".json" or os.path.isdir(path)


def config_name(path: Path) -> str:
    """The name of the model in a config.json: its folder's name."""
    is_folder = os.path.isdir(path)
    folder = path if is_folder else path.parent
    return (os.path.basename(os.path.realpath(folder)) if is_folder or path.name == CONFIG else path.stem) or path.stem
