"""Files of families that are not known: which fields their keys give, and which are open."""

import json
import re
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml

from benchmarks.model_configs import contradictions, keys_of, read_all, refused
from stripectl.errors import BadInput
from stripectl.models.config_json import CONFIG
from stripectl.models.model_files import load_model
from stripectl.models.unknown_family import COMMON
from stripectl.util.files import one_line
from tests.support import hostile
from tests.support.model_configs import PUBLISHED, decoder
from tests.support.untrusted import watched

DENSE = decoder("new", 4096, 11008, 36, 32, 8, 151680, head_dim=128)
SIZES = {"hidden": 4096, "feed_forward": 11008, "layers": 36, "heads": 32, "kv_heads": 8, "head_dim": 128} | {
    "vocabulary": 151680
}
LATENT = {"qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "kv_lora_rank": 512}


def suggested(config: dict[str, Any], folder: Path) -> tuple[dict[str, int | None], str]:
    """The YAML that the refusal prints, and the text of the refusal, as a terminal shows it."""
    (folder / CONFIG).write_text(json.dumps(config))
    with watched(), pytest.raises(BadInput, match="is not known") as told:
        load_model(str(folder))
    text = one_line(str(told.value))
    return yaml.safe_load(re.findall(r"Try a YAML file with .*?: (\{.*\})\.$", text)[0]), text


def without(config: dict[str, Any], *names: str) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key not in names}


def opened(config: dict[str, Any], folder: Path) -> set[str]:
    """The fields without a number; the others have those of DENSE."""
    found, _ = suggested(config, folder)
    assert {name: value for name, value in found.items() if value is not None}.items() <= SIZES.items()
    return {name for name, value in found.items() if value is None}


def test_a_dense_decoder_gives_every_field(tmp_path: Path) -> None:
    found, text = suggested(DENSE, tmp_path)
    assert found == SIZES and "with these sizes" in text
    (tmp_path / "new.yaml").write_text(yaml.safe_dump(found))
    assert load_model(str(tmp_path / "new.yaml")).parameters > 0


@pytest.mark.parametrize("name", PUBLISHED)
def test_numbers_of_published_models_are_those_that_their_family_gives(name: str, tmp_path: Path) -> None:
    """No family: a number is as where the family is known, or open."""
    config = PUBLISHED[name].config
    (tmp_path / CONFIG).write_text(json.dumps(config))
    known = load_model(str(tmp_path))
    unknown = {key: value for key, value in config.items() if key != "model_type"}
    if "text_config" in config:
        unknown["text_config"] = without(config["text_config"], "model_type")
    found, text = suggested(unknown, tmp_path)
    given = {field: value for field, value in found.items() if value is not None}
    assert {field: getattr(known, field) for field in given} == given
    assert known.attention == "softmax" or found["layers"] is None
    assert all(field in text or COMMON[field][0] in text for field, value in found.items() if value is None)


@pytest.mark.parametrize(
    "keys",
    [
        {"num_local_experts": 256, "num_experts_per_tok": 8},
        {"n_routed_experts": 64},
        {"moe_intermediate_size": 1536},
        {"ffn_config": {"moe_num_experts": 16}},
        {"router_aux_loss_coef": 0.001},
    ],
)
def test_a_feed_forward_is_open_where_the_file_has_experts(keys: dict[str, Any], tmp_path: Path) -> None:
    assert opened(DENSE | keys, tmp_path) == {"feed_forward"}
    assert "feed_forward (" in suggested(DENSE | keys, tmp_path)[1]
    assert opened({"text_config": DENSE | keys}, tmp_path) == {"feed_forward"}
    numbers = [f"{key} is {value}" for key, value in keys.items() if isinstance(value, int)]
    assert all(each in suggested(DENSE | keys, tmp_path)[1] for each in numbers)


@pytest.mark.parametrize("keys", [{"num_experts": None}, {"num_experts": 0}, {"enable_moe_block": False}])
def test_experts_that_are_switched_off_leave_nothing_open(keys: dict[str, Any], tmp_path: Path) -> None:
    assert opened(DENSE | keys, tmp_path) == set()


PATTERN = "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*"  # 36 letters


@pytest.mark.parametrize(
    ("keys", "counted"),
    [
        ({"hybrid_override_pattern": PATTERN}, "16 of M, 15 of E, 5 of *"),
        ({"layers_block_type": ["mamba", "moe", "attention"] * 12}, "12 of mamba, 12 of moe, 12 of attention"),
        ({"layer_types": ["linear_attention"] * 30 + ["full_attention"] * 6}, "30 of linear_attention, 6 of full"),
        ({"layer_types": ["sliding_attention", "full_attention"] * 18}, "18 of sliding_attention, 18 of full"),
        ({"layer_types": ["linear_attention"] * 36}, "36 of linear_attention"),
        ({"compress_ratios": [0, 4, 128] * 12}, "12 of 0, 12 of 4, 12 of 128"),
        ({"block_configs": [{"attention": {"no_op": i % 2 == 0}} for i in range(36)]}, "2 kinds in 36 layers"),
        ({"nested_config": {"some_freq": [0] * 3 + [1] * 33}}, "3 of 0, 33 of 1"),
        ({"attn_layer_period": 8, "attn_layer_offset": 4}, "attn_layer_period is 8"),
        ({"full_attention_interval": 4}, "full_attention_interval is 4"),
        ({"index_topk": 2048}, "index_topk is 2048"),
        ({"attention_chunk_size": 8192}, "attention_chunk_size is 8192"),
        ({"mamba_num_heads": 64, "mamba_head_dim": 64}, "mamba_num_heads is 64"),
    ],
)
def test_layers_of_several_kinds_are_counted_and_not_given_as_softmax(
    keys: dict[str, Any], counted: str, tmp_path: Path
) -> None:
    blocks = any(word in next(iter(keys)) for word in ("hybrid", "block", "mamba"))  # perhaps without a feed-forward
    assert opened(DENSE | keys, tmp_path) == {"layers"} | ({"feed_forward"} if blocks else set())
    assert counted in suggested(DENSE | keys, tmp_path)[1]


def test_a_list_of_layers_says_how_many_there_are(tmp_path: Path) -> None:
    bare = without(DENSE, "num_hidden_layers")
    _, text = suggested(bare | {"layer_types": ["linear_attention", "full_attention"] * 18}, tmp_path)
    assert "18 of linear_attention, 18 of full_attention" in text and "lacks" not in text


def test_layers_that_are_all_of_softmax_attention_are_given(tmp_path: Path) -> None:
    for kind in ("full_attention", "attention"):
        assert opened(DENSE | {"layer_types": [kind] * 36}, tmp_path) == set()
    assert opened(DENSE | {"mlp_layer_types": ["dense"] * 3 + ["sparse"] * 33}, tmp_path) == set()


def test_heads_of_latent_attention_come_from_their_own_keys(tmp_path: Path) -> None:
    for more in ({}, {"qk_head_dim": 192}, {"num_key_value_heads": 32}):
        found, _ = suggested(without(DENSE, "head_dim", "num_key_value_heads") | LATENT | more, tmp_path)
        assert found == SIZES | {"kv_heads": 32, "head_dim": 192, "v_head_dim": 128}
    for other, field in (({"qk_head_dim": 256}, "head_dim"), ({"num_key_value_heads": 1}, "kv_heads")):
        found, text = suggested(DENSE | {"num_key_value_heads": 32} | LATENT | other, tmp_path)
        assert found[field] is None and f"{next(iter(other))} is {next(iter(other.values()))}" in text
    found, text = suggested(DENSE | LATENT | {"swa_v_head_dim": 64}, tmp_path)
    assert found["head_dim"] is None and "but swa_v_head_dim is 64" in text
    for absent in LATENT.keys() - {"kv_lora_rank"}:
        found, text = suggested(DENSE | without(LATENT, absent), tmp_path)
        assert found["head_dim"] is found["kv_heads"] is None and f"without {absent}" in text


@pytest.mark.parametrize(
    ("key", "field"),
    [
        ("global_head_dim", "head_dim"),
        ("num_global_key_value_heads", "kv_heads"),
        ("swa_num_attention_heads", "heads"),
        ("decoder_hidden_size", "hidden"),
        ("dense_intermediate_size", "feed_forward"),
        ("n_embd", "hidden"),
    ],
)
def test_a_field_is_open_where_another_key_says_another_number(key: str, field: str, tmp_path: Path) -> None:
    assert opened(DENSE | {key: 3}, tmp_path) == {field}
    assert f"but {key} is 3" in suggested(DENSE | {key: 3}, tmp_path)[1]
    assert opened(DENSE | {key: SIZES[field]}, tmp_path) == opened(DENSE | {key: 0}, tmp_path) == set()


@pytest.mark.parametrize("field", COMMON)
def test_a_field_without_a_number_is_open_and_named(field: str, tmp_path: Path) -> None:
    name = COMMON[field][0]
    assert opened(without(DENSE, name), tmp_path) == {field}
    assert f"lacks {name}." in suggested(without(DENSE, name), tmp_path)[1]
    for wrong in (None, "8", 8.0, True, 0, -1, 10**40, [8]):
        found, text = suggested(DENSE | {name: wrong}, tmp_path)
        assert found[field] is None and "lacks" not in text and f"{name} is " in text


@pytest.mark.parametrize("name", PUBLISHED)
def test_spoilt_files_are_refused_with_yaml(name: str, tmp_path: Path) -> None:
    random = Random(name)
    for _ in range(50):
        spoilt = hostile.mutated(without(PUBLISHED[name].config, "text_config"), random)
        if isinstance(spoilt, dict):
            suggested({**spoilt, "model_type": "new", "architectures": None}, tmp_path)


def test_a_long_path_leaves_the_yaml_whole(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 40) / ("path" * 40)
    folder.mkdir(parents=True)
    keys = {"num_experts": 8, "layer_types": ["sliding_attention", "full_attention"] * 18, "global_head_dim": 3}
    assert opened(DENSE | keys, folder) == {"feed_forward", "layers", "head_dim"}


def test_the_benchmark_finds_numbers_that_a_file_contradicts() -> None:
    for field in SIZES:
        assert contradictions(list(keys_of(DENSE)), SIZES | {field: 5})
    for keys, field in (({"num_experts": 8}, "feed_forward"), ({"hybrid_override_pattern": PATTERN}, "layers")):
        (told,) = contradictions(list(keys_of({"text_config": DENSE | keys})), SIZES)
        assert told.startswith(f"{field} beside {next(iter(keys))}")
    assert contradictions(list(keys_of(DENSE | LATENT)), SIZES)[0] == "head_dim: 128 where head_dim is 192"
    assert contradictions(list(keys_of(DENSE)), SIZES) == []
    text = "The file lacks vocab_size. Try a YAML file with numbers in place of null: {hidden: ?}."
    assert refused(text, list(keys_of({"text_config": DENSE}))) == ["lacks vocab_size", "the YAML does not parse"]


def test_the_benchmark_counts_how_files_are_read(tmp_path: Path) -> None:
    files = {"llama": PUBLISHED["Llama-3-8B"].config, "oss": PUBLISHED["gpt-oss-20b"].config, "dense": DENSE}
    files |= {
        "mixed": DENSE | {"num_experts": 8, "hybrid_override_pattern": PATTERN},
        "hf_quant": {"quant_algo": "FP8"},
    }
    for name, content in files.items():
        (tmp_path / f"{name}_config.json").write_text(json.dumps(content))
    counts, told = read_all(tmp_path)
    assert told == [] and sorted(counts.values()) == [1, 1, 2]
