"""Where a config.json has the keys of its language model, and which names of a family it has.

A model with vision or audio has the keys of its language model in `text_config` or `language_config`, possibly nested.
A key that is absent there is taken from around it. The family is named by the innermost `model_type` that is known,
else by a class in `architectures`: `Qwen3ForCausalLM` is of `qwen3`, `DeepseekV3ForCausalLM` of `deepseek_v3`.
"""

import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

from stripectl.core.replacement import OMITTED, Replacement
from stripectl.errors import BadInput
from stripectl.util.json import Json, JsonObject, is_list, is_mapping

NESTED = ("text_config", "language_config")
ENCODERS = {"vision_config": "vision encoder", "audio_config": "audio encoder"}
CLASS = re.compile(r"(\w+?)For(?:CausalLM|ConditionalGeneration)")


class LanguageModel(NamedTuple):
    """The keys of a language model, the values of `model_type` and the classes in `architectures` that the file has,
    the innermost first, and the other parts of the file's model."""

    content: JsonObject
    types: Sequence[Json]
    classes: Sequence[str]
    omitted: Sequence[Replacement]

    @property
    def model_type(self) -> Json:
        """The innermost `model_type`; None where the file has none."""
        return self.types[0] if self.types else None


def language_model(path: Path, content: JsonObject) -> LanguageModel:
    """The language model in a config.json.

    Raises:
        BadInput: a key of NESTED is not a mapping.
    """
    levels = [content]
    while (name := next((each for each in NESTED if levels[0].get(each) is not None), None)) is not None:
        if not is_mapping(inner := levels[0][name]):
            raise BadInput(f"the model {path} has {name}: {inner!r:.40}, but it must be a mapping of keys to values.")
        levels.insert(0, inner)
    own = dict[str, Json]()
    for level in reversed(levels):
        own |= {key: value for key, value in level.items() if key not in NESTED}
    classes = [each for level in levels if is_list(names := level.get("architectures")) for each in names]
    return LanguageModel(
        {key: value for key, value in own.items() if key not in ENCODERS},
        [level["model_type"] for level in levels if level.get("model_type") is not None],
        [each for each in classes if isinstance(each, str)],
        [Replacement(part, OMITTED, distorts=("memory",)) for key, part in ENCODERS.items() if own.get(key)],
    )


def family_name(language: LanguageModel, known: Collection[str]) -> str | None:
    """The family of a language model; None where no name in its file is of a known family."""
    for each in language.types:
        if isinstance(each, str) and each in known:
            return each
    by_class = {name.replace("_", ""): name for name in known}
    prefixes = (found[1].lower() for each in language.classes if (found := CLASS.fullmatch(each)))
    return next((by_class[prefix] for prefix in prefixes if prefix in by_class), None)
