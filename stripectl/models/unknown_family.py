"""The refusal of a config.json of an unknown family: the fields that its keys give, and why the others are open.

No number is invented: a field is taken only where its key cannot mean anything else. Each of these leaves a field open:

- another key for the same size has another value, such as `global_head_dim` next to `head_dim`;
- keys of experts: `intermediate_size` may be of one expert;
- keys of state-space layers and of hybrid patterns: layers may have no feed-forward, or several;
- keys of several kinds of layers: a number of layers would be read as layers of softmax attention.

Heads of latent attention (DeepSeek-AI 2024, arXiv:2405.04434) are known from their own keys: queries and keys have
`qk_nope_head_dim` + `qk_rope_head_dim` elements, values have `v_head_dim`.
"""

import json
import re
import reprlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from stripectl.errors import BadInput
from stripectl.util.json import Json, JsonObject, is_list, is_mapping

COMMON = {  # field of a model -> its keys in most families
    "hidden": ("hidden_size", "n_embd", "d_model", "dim"),
    "feed_forward": ("intermediate_size", "n_inner", "ffn_hidden_size", "d_ff"),
    "layers": ("num_hidden_layers", "n_layer", "num_layers", "n_layers"),
    "heads": ("num_attention_heads", "n_head", "num_heads", "n_heads"),
    "kv_heads": ("num_key_value_heads", "num_kv_heads", "n_kv_heads"),
    "head_dim": ("head_dim", "attention_head_dim"),
    "vocabulary": ("vocab_size",),
}
OTHER_PARTS = {"mamba", "ssm", "linear", "mtp", "nextn", "index", "expert", "experts", "moe", "router", "v"}
MAX_SIZE = 2**30
EXPERTS = re.compile(r"expert|router|moe")
NUMBERS_OF_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
KINDS = re.compile(
    r"layer_types|layers?_block|block_types|block_configs|hybrid|layer_pattern|attn_type|attn_layer|full_attn|"
    r"attention_interval|every_n|mamba|ssm|state_size|linear_(attn|num|key|value|conv)|rwkv|recurrent|lightning|conv_l|"
    r"index_topk|sparse_attention|compress_r|chunk_size$|kv_shared|window_pattern|is_encoder_decoder"
)
NOT_OF_ATTENTION = re.compile(r"mlp|moe|mtp|feed_forward")  # in names that KINDS finds too
SOFTMAX = {"full_attention", "attention"}  # names of a layer of plain softmax attention
LATENT = ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
BLOCKS = re.compile(r"mamba|ssm|hybrid|layers?_block|block_types|block_configs")  # a feed-forward may be its own layer
NOT_OF_THE_MODEL = re.compile(r"quantization|compression_config|2label$|label2|dtype$")
MAX_SHOWN_KINDS = 4


def unknown_family(path: Path, model_type: Json, content: JsonObject) -> BadInput:
    """The refusal of a language model with these keys: the fields that are open, and the YAML to complete."""
    found = known_fields(dict(flat_keys(content)))
    reasons: dict[str, list[str]] = {}
    for name, why in found.items():
        if isinstance(why, str):
            reasons.setdefault(why, []).append(name)
    opened = [f"{' and '.join(names)} ({why})" for why, names in reasons.items()]
    absent = [COMMON[name][0] for name, value in found.items() if value is None]
    said = f"Its keys do not decide {', '.join(opened)}. " if opened else ""
    said += f"The file lacks {', '.join(absent)}. " if absent else ""
    sizes = ", ".join(f"{name}: {value if type(value) is int else 'null'}" for name, value in found.items())
    place = "numbers in place of null" if said else "these sizes"
    return BadInput(
        f"cannot read the model {path} because its model_type {reprlib.repr(model_type)} is not known. "
        f"{said}Try a YAML file with {place}: {{{sizes}}}."
    )


def flat_keys(content: JsonObject, around: str = "") -> Iterator[tuple[str, Json]]:
    """The keys and values of a language model, with a key inside a mapping behind the key of the mapping."""
    for key, value in content.items():
        name = f"{around}{key}"
        if NOT_OF_THE_MODEL.search(name):
            continue
        if is_mapping(value):
            yield from flat_keys(value, f"{name}_")
        else:
            yield name, value


def known_fields(keys: JsonObject) -> dict[str, int | str | None]:
    """Each field of a model: its number, the reason why it is open, or None where the file has no key for it."""
    found = {name: size_of(keys, names) for name, names in COMMON.items()}
    values = size_of(keys, LATENT[-1:])
    found |= {"v_head_dim": values} if values is not None else {}
    found |= latent_heads(keys, found["heads"])
    found["feed_forward"] = why_of_one_expert(keys) or why_no_feed_forward(keys) or found["feed_forward"]
    kinds = why_several_kinds(keys)
    found["layers"] = kinds or found["layers"]
    if kinds and COMMON["heads"][0] not in keys:  # heads of a layer without attention
        found |= dict.fromkeys(("heads", "kv_heads", "head_dim"), kinds)
    return found


def size_of(keys: JsonObject, names: tuple[str, ...]) -> int | str | None:
    """The number that the first of these keys has, where no other key names another number for the same."""
    present = [name for name in names if name in keys]
    if not present:
        return None
    name = next((each for each in present if keys[each] is not None), present[0])
    value = keys[name]
    if type(value) is not int or not 1 <= value <= MAX_SIZE:
        return f"{name} is {json.dumps(value) if value is None else reprlib.repr(value)}"
    others = (each for each in keys if each in names or is_rival(each, name))
    other = next((each for each in others if keys[each] and keys[each] != value), None)
    return f"{name} is {value}, but {other} is {reprlib.repr(keys[other])}" if other else value


def is_rival(other: str, name: str) -> bool:
    """Whether a key may name the same size for some layers: it has the words of the name and more words, of which none
    names another part of the model."""
    words, mine = other.split("_"), name.split("_")
    more = {*words} - {*mine}
    return words[-1] == mine[-1] and {*mine} <= {*words} and bool(more) and not more & OTHER_PARTS


def latent_heads(keys: JsonObject, heads: int | str | None) -> dict[str, int | str | None]:
    """Fields of the heads of latent attention, where the file has its keys."""
    plain, rotary, values = sizes = [size_of(keys, (name,)) for name in LATENT]
    if not isinstance(plain, int) or not isinstance(rotary, int) or not isinstance(values, int):
        known = next((name for name in (*LATENT[:2], "kv_lora_rank") if keys.get(name)), None)
        absent = next((name for name, size in zip(LATENT, sizes, strict=True) if size is None), None)
        why = f"{known} is there without {absent}" if absent else next(each for each in sizes if isinstance(each, str))
        return dict.fromkeys(("kv_heads", "head_dim"), why) if known else {}
    whole, groups = keys.get("qk_head_dim") or plain + rotary, keys.get("num_key_value_heads") or heads
    return {
        "kv_heads": heads if groups == heads else f"num_key_value_heads is {reprlib.repr(groups)}",
        "head_dim": plain + rotary if whole == plain + rotary else f"qk_head_dim is {reprlib.repr(whole)}",
        "v_head_dim": values,
    }


def why_of_one_expert(keys: JsonObject) -> str | None:
    """Why a feed-forward may be of one expert; None where the file has no key of experts."""
    found = [key for key, value in keys.items() if EXPERTS.search(key) and value]
    name = next((each for each in (*NUMBERS_OF_EXPERTS, *found) if each in found), None)
    chosen = (each for each in found if each.endswith(("per_tok", "per_token")) and each != name)
    named = [f"{each} is {reprlib.repr(keys[each])}" for each in (name, next(chosen, None)) if each]
    return ", ".join([*named, "and a size may be of one expert"]) if named else None


def why_no_feed_forward(keys: JsonObject) -> str | None:
    """Why layers may have no feed-forward; None where no key speaks of such layers."""
    name = next((key for key, value in keys.items() if BLOCKS.search(key) and value), None)
    return name and f"layers of {name} may have no feed-forward"


def why_several_kinds(keys: JsonObject) -> str | None:
    """Why layers may not all be of softmax attention, with their number by kind where a list or a word has a value for
    each layer; None where no key speaks of kinds of layers."""
    layers, found = size_of(keys, COMMON["layers"]), list[str]()
    for key, value in keys.items():
        if not value or NOT_OF_ATTENTION.search(key):
            continue
        named = KINDS.search(key) is not None
        if is_list(value) or (named and isinstance(value, str) and key.endswith(("pattern", "types"))):
            counts = Counter(each if isinstance(each, str) else json.dumps(each) for each in value)
            each_layer = isinstance(layers, int) and len(value) >= layers
            if (named and not counts.keys() <= SOFTMAX) or (each_layer and len(counts) > 1):
                return f"{key} has {counted(counts)}"
        elif named:
            found.append(f"{key} is {reprlib.repr(value)}, and layers may not be of softmax attention alone")
    return found[0] if found else None


def counted(counts: Counter[str]) -> str:
    """Layers by kind: `23 of M, 6 of *`."""
    if len(counts) > MAX_SHOWN_KINDS or any(len(kind) > 2 * len("full_attention") for kind in counts):
        return f"{len(counts)} kinds in {counts.total()} layers"
    return ", ".join(f"{times} of {kind}" for kind, times in counts.items())
