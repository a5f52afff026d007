"""How files of published models are read: computed whole, with replaced parts, or refused with open fields.

    python benchmarks/model_configs.py FOLDER      # every *_config.json in it that has a model

A printed number is checked against the file without the code that printed it. It is a contradiction where any key of
the language model with the same ending has another number, where the file has keys of experts and a feed-forward is
printed, or where a list or a pattern has several kinds of layers and a number of layers is printed.
"""

import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from stripectl.core.model import Model
from stripectl.errors import BadInput
from stripectl.models.model_files import load_model

KEYS = {  # field -> the end of the keys that may give it
    "hidden": "hidden_size",
    "feed_forward": "intermediate_size",
    "layers": "num_hidden_layers",
    "heads": "attention_heads",
    "kv_heads": "key_value_heads",
    "head_dim": "head_dim",
    "vocabulary": "vocab_size",
}
OTHERS = re.compile(r"vision|audio|quantization|mamba|linear|index|mtp|expert|moe|qk_(nope|rope)|(^|_)v_|label")
MIN_LAYERS = 8  # shorter lists are of something else
ENCODERS = ("vision_config", "audio_config", "quantization_config")


def keys_of(content: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Every key of a file and its value, at any depth, outside encoders and quantisation."""
    for key, value in content.items():
        if isinstance(value, dict) and key not in ENCODERS:
            yield from keys_of(value)
        elif value is not None:
            yield key, value


def contradictions(keys: list[tuple[str, Any]], found: dict[str, Any]) -> list[str]:
    """The printed numbers that a file contradicts."""
    named = dict(keys)
    if {"qk_nope_head_dim", "qk_rope_head_dim"} <= named.keys():  # latent attention: the other keys do not count
        keys = [(key, value) for key, value in keys if key not in ("head_dim", "num_key_value_heads", "qk_head_dim")]
        keys.append(("head_dim", named["qk_nope_head_dim"] + named["qk_rope_head_dim"]))
    told = [
        f"{field}: {found[field]} where {key} is {value}"
        for field, end in KEYS.items()
        for key, value in keys
        if found[field] and key.endswith(end) and value and value != found[field] and not OTHERS.search(key)
    ]
    experts = [key for key, value in keys if re.search(r"expert|router|moe", key) and value]
    kinds = [
        key
        for key, value in keys
        if isinstance(value, list) or key.endswith("pattern")
        if len(value) > MIN_LAYERS and len({*map(str, value)}) > 1 and not re.search(r"mlp|moe|words", key)
    ]
    told += [f"feed_forward beside {key}" for key in experts[:1] if found["feed_forward"]]
    return told + [f"layers beside {key}" for key in kinds[:1] if found["layers"]]


def computed(model: Model, keys: list[tuple[str, Any]]) -> list[str]:
    """The numbers of a computed model that its file contradicts. Experts and windows are named parts, and heads may be
    of the family's default."""
    sizes = {field: getattr(model, field) for field in KEYS} | {"feed_forward": None}
    named = " ".join(map(str, model.replaced))
    sizes |= {"layers": None} if "sliding" in named or "linear" in named else {}
    experts = any(key in dict(keys) for key in ("num_experts", "num_local_experts", "n_routed_experts"))
    return contradictions(keys, sizes) + ["experts are not named"] * (experts and "experts" not in named)


def refused(text: str, keys: list[tuple[str, Any]]) -> list[str]:
    """The numbers in a refusal that the file contradicts, and the keys that it is said to lack, but has."""
    lacks = re.findall(r"The file lacks (.*?)\. ", text)
    absent = lacks[0].split(", ") if lacks else []
    wrong = [f"lacks {key}" for key in absent if key in dict(keys)]
    suggestion = re.findall(r"Try a YAML file with .*?: (\{.*\})\.$", text)
    if not suggestion:
        return wrong
    try:
        found = yaml.safe_load(suggestion[0])
    except yaml.YAMLError:
        return [*wrong, "the YAML does not parse"]
    unsaid = [name for name, value in found.items() if value is None and f"{name} " not in text.split("Try")[0]]
    wrong += [f"{name} is open without a reason" for name in unsaid if not any(KEYS[name] in key for key in absent)]
    return wrong + contradictions(keys, found)


def read_all(folder: Path) -> tuple[Counter[str], list[str]]:
    """The number of files by how they are read, and a line for each contradiction."""
    counts, told = Counter[str](), list[str]()
    for path in sorted(folder.glob("*_config.json")):
        content = json.loads(path.read_text())
        if not {"model_type", "architectures"} & content.keys():
            continue  # of a quantisation
        keys = list(keys_of(content))
        try:
            model = load_model(str(path))
            wrong = computed(model, keys)
            counts["computed with named replacements" if model.replaced else "computed whole"] += 1
        except BadInput as error:
            wrong = refused(str(error), keys)
            counts["refused, open fields named" if "Try a YAML" in str(error) else "refused, a key named"] += 1
        told += [f"{path.name}: {each}" for each in wrong]
    return counts, told


def main(folder: Path) -> None:
    counts, told = read_all(folder)
    rows = [f"{count:4} {name}" for name, count in sorted(counts.items())]
    print("\n".join([f"{counts.total():4} files", *rows, f"{len(told):4} contradictions", *told]))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
