"""Models by their config.json: sizes, the masks of layers, what is replaced, and files that are refused.
`test_unknown_family.py` has files of families that are not known."""

import json
import re
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from stripectl.core.rotary_scaling import YarnScaling
from stripectl.errors import BadInput
from stripectl.models.config_json import CONFIG, read_config
from stripectl.models.family import families
from stripectl.models.model_files import load_model
from stripectl.util.files import one_line, profile_names
from tests.support import hostile
from tests.support.model_configs import PUBLISHED, YARN, decoder
from tests.support.untrusted import asked, refused, watched

MSCALE = {"mscale": 1.0, "mscale_all_dim": 1.0}
GOOD = PUBLISHED["Llama-3-8B"].config


def written(folder: Path, content: Any) -> Path:
    path = folder / CONFIG
    path.write_text(content if isinstance(content, str) else json.dumps(content), errors="surrogatepass")
    return path


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_the_published_ones(name: str, tmp_path: Path) -> None:
    """Those of computed matrices with those that no computed matrix has."""
    published, path = PUBLISHED[name], written(tmp_path, PUBLISHED[name].config)
    model, config = load_model(str(path)), read_config(path)
    assert abs(model.parameters - published.parameters) <= published.rounded
    assert model.replaced == config.replaced


def test_every_family_has_a_published_model() -> None:
    configs = [each.config for each in PUBLISHED.values()]
    tested = {part["model_type"] for each in configs for part in (each, each.get("text_config", each))}
    assert tested >= set(families.names())


@pytest.mark.parametrize("name", sorted(PUBLISHED.keys() & set(profile_names("models"))))
def test_models_that_ship_are_as_their_config_says(name: str, tmp_path: Path) -> None:
    written(tmp_path, PUBLISHED[name].config)
    shipped, read = (replace(load_model(each), name="") for each in (name, str(tmp_path)))
    if not shipped.other_parameters:  # then a file names its matrices alone, and its norms are a rounding
        assert 0 <= read.other_parameters < 1e-4 * read.parameters
        read = replace(read, other_parameters=0)
    assert shipped == read


def masks(config: dict[str, Any], folder: Path) -> list[str]:
    return list(read_config(written(folder, config)).masks)


def test_layers_have_the_masks_of_their_family(tmp_path: Path) -> None:
    def of(name: str) -> list[str]:
        return masks(PUBLISHED[name].config, tmp_path)

    assert of("Gemma-2-9B") == ["sliding:4096", "causal"] * 21
    assert of("gemma3-27b") == (["sliding:1024"] * 5 + ["causal"]) * 10 + ["sliding:1024"] * 2
    assert of("gpt-oss-120b") == ["sliding:128", "causal"] * 18
    assert of("Olmo-3-7B") == (["sliding:4096"] * 3 + ["causal"]) * 8
    assert of("Mistral-7B") == ["sliding:4096"] * 32 and set(of("Qwen2-7B")) == {"causal"}
    assert of("qwen3-next-80b-a3b") == (["linear"] * 3 + ["causal"]) * 12
    assert [i for i, mask in enumerate(of("kimi-linear-48b-a3b"), 1) if mask == "causal"] == [4, 8, 12, 16, 20, 24, 27]
    windowed = PUBLISHED["Qwen2-7B"].config | {"use_sliding_window": True, "max_window_layers": 20}
    assert masks(windowed, tmp_path) == ["causal"] * 20 + ["sliding:131072"] * 8
    named = decoder("gpt_oss", 64, 64, 2, 4, 2, 100) | {"layer_types": ["full_attention", "sliding_attention"]}
    assert masks(named, tmp_path) == ["causal", "sliding:128"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gemma3-27b", {"attention": "softmax", "heads": 32, "kv_heads": 16, "head_dim": 128, "vocabulary": 262208}),
        ("gpt-oss-120b", {"feed_forward": 4 * 2880, "head_dim": 64, "sinks": True, "soft_cap": None}),
        ("Gemma-2-9B", {"sinks": False, "soft_cap": 50.0}),
        ("deepseek-v3", {"kv_heads": 128, "head_dim": 192, "v_head_dim": 128, "feed_forward": 9 * 2048}),
        ("qwen3-next-80b-a3b", {"attention": "LLLS", "recurrence": "gdn", "linear_heads": (32, 16, 128, 128)}),
        ("kimi-linear-48b-a3b", {"attention": "LLLS" * 6 + "LLS", "head_dim": 192, "v_head_dim": 128}),
        ("mamba-codestral-7b", {"recurrence": "mamba2", "heads": 128, "key_heads": 8, "v_head_dim": 64}),
    ],
)
def test_what_cannot_be_computed_is_replaced(name: str, expected: dict[str, Any], tmp_path: Path) -> None:
    found = load_model(str(written(tmp_path, PUBLISHED[name].config)))
    assert {key: getattr(found, key) for key in expected} == expected


@pytest.mark.parametrize(
    ("name", "change", "expected"),
    [
        ("Gemma-2-9B", {}, {"norms": "both", "scaled_embedding": True, "tied": True, "activation": "gelu_tanh"}),
        ("Gemma-2-9B", {}, {"attention_scale": None, "logit_cap": 30.0}),
        ("Gemma-2-27B", {}, {"attention_scale": 144**-0.5}),
        ("OLMo-2-7B", {}, {"norms": "after", "query_key_norm": "all", "tied": False}),
        ("Qwen2-7B", {}, {"qkv_bias": True, "output_bias": False}),
        ("gpt-oss-20b", {}, {"qkv_bias": True, "output_bias": True, "rotary_base": 150000}),
        ("qwen3-next-80b-a3b", {}, {"rotary_dim": 64, "rotary_base": 10000000}),
        ("Llama-3-8B", {"mlp_bias": True, "hidden_act": "gelu"}, {"feed_forward_bias": True, "activation": "gelu"}),
        ("kimi-linear-48b-a3b", {}, {"rotary_layers": "none"}),
        ("gpt-oss-20b", {}, {"rotary_scaling": YarnScaling(32, 4096, 32, 1, whole=False)}),
        (
            "deepseek-v3",
            {"rope_scaling": YARN | {"factor": 40, "original_max_position_embeddings": 4096} | MSCALE},
            {"rotary_scaling": YarnScaling(40, 4096, 32, 1, 1.0), "attention_scale": 0.1352337788608801},
        ),
        (
            "qwen3-8b",
            {"rope_scaling": YARN | {"attention_factor": 1.5}, "max_position_embeddings": 1024}
            | {"original_max_position_embeddings": 256},
            {"rotary_scaling": YarnScaling(4, 256, 32, 1, 1.5)},
        ),
        ("Llama-3-8B", {"rope_parameters": {"rope_theta": 7, "partial_rotary_factor": 0.5}}, {"rotary_base": 7}),
        ("Llama-3-8B", {"rope_parameters": {"full_attention": {"partial_rotary_factor": 0.5}}}, {"rotary_dim": 64}),
    ],
)
def test_architectures_are_those_of_the_keys(
    name: str, change: dict[str, Any], expected: dict[str, Any], tmp_path: Path
) -> None:
    found = load_model(str(written(tmp_path, PUBLISHED[name].config | change))).architecture
    assert {key: getattr(found, key) for key in expected} == expected


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 4}}, "rotary angles scaled as 'dynamic' (unscaled)"),
        ({"hidden_act": "relu2"}, "activation 'relu2' (silu)"),
    ],
)
def test_values_that_are_not_computed_are_named(change: dict[str, Any], part: str, tmp_path: Path) -> None:
    assert [str(each) for each in load_model(str(written(tmp_path, GOOD | change))).replaced] == [part]


def test_a_replacement_does_as_much_as_the_part(tmp_path: Path) -> None:
    """Heads of latent attention multiply and send as much; those of a state-space model have as wide an output and as
    large a state; a feed-forward has as many parameters as the experts that a token meets."""
    latent, mamba, experts = (
        PUBLISHED[name].config for name in ("kimi-linear-48b-a3b", "mamba-codestral-7b", "gpt-oss-120b")
    )
    found = load_model(str(written(tmp_path, latent)))
    keys = latent["qk_nope_head_dim"] + latent["qk_rope_head_dim"]
    assert (found.heads, found.head_dim + found.value_dim) == (32, keys + latent["v_head_dim"])
    found, width = load_model(str(written(tmp_path, mamba))), mamba["num_heads"] * mamba["head_dim"]
    assert (found.heads * found.value_dim, found.head_dim) == (width, mamba["state_size"])
    assert load_model(str(written(tmp_path, experts))).feed_forward == 4 * experts["intermediate_size"]


def test_keys_that_are_left_out_have_the_defaults_of_the_family(tmp_path: Path) -> None:
    for name in families.names():
        config = {"model_type": name, **({"text_config": {}} if name == "gemma3" else {})}
        assert load_model(str(written(tmp_path, config))).layers == len(masks(config, tmp_path))


ENCODERS = {"vision_config": {"hidden_size": 1152}, "audio_config": {"hidden_size": 640}}
OMITTED_ENCODERS = ("vision encoder (omitted)", "audio encoder (omitted)")


def nested(config: dict[str, Any], around: tuple[str, ...]) -> dict[str, Any]:
    """The config.json of a model with vision and audio, whose language model is under these keys, the outermost
    first."""
    for name in reversed(around):
        config = {"model_type": "new", "hidden_size": 3, name: config}
    return config | ENCODERS


@pytest.mark.parametrize(
    "around", [("text_config",), ("language_config",), ("language_config", "text_config"), ("text_config",) * 3]
)
@pytest.mark.parametrize("name", ["qwen3-8b", "deepseek-v3", "gpt-oss-120b", "mamba-codestral-7b"])
def test_a_language_model_is_read_where_its_keys_are(name: str, around: tuple[str, ...], tmp_path: Path) -> None:
    alone = load_model(str(written(tmp_path, PUBLISHED[name].config)))
    found = load_model(str(written(tmp_path, nested(PUBLISHED[name].config, around))))
    assert tuple(map(str, found.replaced[:2])) == OMITTED_ENCODERS
    assert replace(found, replaced=found.replaced[2:]) == alone


def test_keys_around_a_language_model_are_read_where_it_has_none(tmp_path: Path) -> None:
    inner = {key: value for key, value in GOOD.items() if key not in ("model_type", "vocab_size")}
    outer = {"model_type": "llama", "vocab_size": 1000, "tie_word_embeddings": True, "text_config": inner}
    found = load_model(str(written(tmp_path, outer)))
    assert (found.vocabulary, found.hidden) == (1000, GOOD["hidden_size"])
    assert found.architecture.tied and not found.replaced
    assert load_model(str(written(tmp_path, outer | {"text_config": GOOD}))).vocabulary == GOOD["vocab_size"]


@pytest.mark.parametrize("name", families.names())
def test_a_class_in_architectures_names_the_family(name: str, tmp_path: Path) -> None:
    title = "".join(word.capitalize() for word in name.split("_"))
    for ending in ("ForCausalLM", "ForConditionalGeneration"):
        content = {"model_type": "new", "architectures": [title + ending]}
        assert read_config(written(tmp_path, content)) == read_config(written(tmp_path, {"model_type": name}))
    for other in (f"{title}Model", f"{title}XForCausalLM", f"X{title}ForCausalLM", title, "ForCausalLM", 5, None):
        with pytest.raises(BadInput, match="model_type 'new' is not known"):
            read_config(written(tmp_path, {"model_type": "new", "architectures": [other]}))


def test_a_known_model_type_precedes_a_class(tmp_path: Path) -> None:
    content = GOOD | {"architectures": ["MistralForCausalLM"], "sliding_window": 4096}
    assert set(masks(content, tmp_path)) == {"causal"}
    assert set(masks(content | {"model_type": "new"}, tmp_path)) == {"sliding:4096"}
    both = {"model_type": "mistral", "text_config": GOOD | {"sliding_window": 4096}}
    assert set(masks(both, tmp_path)) == {"causal"}
    both["text_config"] = {**both["text_config"], "model_type": "new"}
    assert set(masks(both, tmp_path)) == {"sliding:4096"}


@pytest.mark.parametrize("megabytes", [1, 3, 15])
def test_large_files_are_read(megabytes: int, tmp_path: Path) -> None:
    """Lists of modules that are not quantised: three megabytes in a published file."""
    names = [f"model.layers.{i % 60}.mlp.experts.{i:06}" for i in range(megabytes * 2**20 // 41)]
    large = GOOD | {"quantization_config": {"ignore": names}}
    assert load_model(str(written(tmp_path, large))) == load_model(str(written(tmp_path, GOOD)))


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (GOOD | {"rope_theta": -1}, "has rope_theta: -1, but it must be a positive number"),
        (GOOD | {"partial_rotary_factor": 0.01}, "a part of head_dim 128 with an even number"),
        (
            GOOD | {"rope_scaling": {"rope_type": "llama3", "factor": 8}},
            "has low_freq_factor: None, but it must be a number",
        ),
        (GOOD | {"hidden_act": ["silu"]}, "the name of an activation"),
        (GOOD | {"hidden_size": 10**30}, "has hidden_size: 1000"),
        (GOOD | {"hidden_size": "4096"}, "has hidden_size: '4096', but it must be an integer from 1"),
        (GOOD | {"hidden_size": 4096.0}, "has hidden_size: 4096.0"),
        (GOOD | {"hidden_size": True}, "has hidden_size: True"),
        (GOOD | {"hidden_size": None}, "has hidden_size: None"),
        (
            GOOD | {"num_hidden_layers": 2**20},
            "has num_hidden_layers: 1048576, but it must be an integer from 1 to 4096",
        ),
        (GOOD | {"num_attention_heads": 5000}, "at most hidden_size"),
        (GOOD | {"num_attention_heads": 2**20, "head_dim": 1}, "has heads: 1048576"),
        (GOOD | {"tie_word_embeddings": 1}, "has tie_word_embeddings: 1, but it must be true or false"),
        (PUBLISHED["Gemma-2-9B"].config | {"attn_logit_softcapping": "x"}, "must be a number or null"),
        (
            PUBLISHED["gpt-oss-20b"].config | {"layer_types": ["full_attention"]},
            "it must be a list of 24 values, one per layer, each",
        ),
        (PUBLISHED["gpt-oss-20b"].config | {"layer_types": [[]] * 24}, "one per layer, each full_attention or"),
        ({"model_type": "gemma3", "text_config": [1]}, "has text_config: .*a mapping"),
        (
            PUBLISHED["kimi-linear-48b-a3b"].config | {"linear_attn_config": {"full_attn_layers": 4, "kda_layers": []}},
            "lists",
        ),
        (
            PUBLISHED["kimi-linear-48b-a3b"].config
            | {"linear_attn_config": {"full_attn_layers": [4, 4], "kda_layers": [1]}},
            "each of the 27 layers once",
        ),
        (PUBLISHED["mamba-codestral-7b"].config | {"num_heads": 3}, "has num_heads: 3"),
        (
            PUBLISHED["kimi-linear-48b-a3b"].config | {"routed_expert_hidden_size": 3584},
            "has routed_expert_hidden_size: 3584, but it must be absent",
        ),
        (GOOD | {"model_type": ["llama"]}, r"model_type \['llama'\] is not known"),
        ({}, "model_type None is not known.*lacks hidden_size, intermediate_size"),
        (
            {"model_type": "falcon", "hidden_size": 64, "n_head": 4, "vocab_size": 9},
            r"The file lacks intermediate_size, num_hidden_layers, num_key_value_heads, head_dim. Try a YAML file with "
            r"numbers in place of null: \{hidden: 64, feed_forward: null, layers: null, heads: 4, kv_heads: null, "
            r"head_dim: null, vocabulary: 9\}",
        ),
        ({"name": "x" * 2**24}, "larger than 16384 KiB"),
        ("[" * 100_000, "nested too deeply"),
        ('{"a":' * 20_000 + "1" + "}" * 20_000, "nested too deeply"),
        ('{"hidden_size": ' + "9" * 10_000 + "}", "is not JSON"),
        ("[1]", "is not a mapping"),
        ("\0", "is not JSON"),
        ("", "is not JSON"),
    ],
)
def test_bad_configs_are_one_line(content: Any, why: str, tmp_path: Path) -> None:
    path = written(tmp_path, content)
    with watched(), pytest.raises(BadInput, match=why) as told:
        load_model(str(path))
    assert len(one_line(str(told.value)).splitlines()) == 1


@pytest.mark.parametrize("name", PUBLISHED)
def test_spoilt_configs_are_read_or_refused(name: str, tmp_path: Path) -> None:
    """Any value in place of some: a model, or a reason."""
    random = Random(name)
    for _ in range(200):
        path = written(tmp_path, hostile.mutated(PUBLISHED[name].config, random))
        with watched():
            model = refused(load_model, str(path))
        assert model is None or model.layers >= 1


def test_a_folder_is_read_by_the_config_in_it(tmp_path: Path) -> None:
    folder = tmp_path / "Qwen3-8B"
    folder.mkdir()
    with pytest.raises(BadInput, match=r"cannot read the model .*config.json: No such file"):
        load_model(str(folder))
    written(folder, PUBLISHED["qwen3-8b"].config)
    assert load_model(str(folder)).name == load_model(str(folder / CONFIG)).name == "Qwen3-8B"


def test_a_command_names_the_parts_that_are_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    written(tmp_path, PUBLISHED["gpt-oss-120b"].config)
    words = ("bench", "--target", "v5e:2x4", "--method", "simulated", "--quiet", "--seqlen", "16k", "--dry-run")
    for model in (str(tmp_path), "gpt-oss-120b"):
        found = asked(*words, "--model", model)
        assert found.code == 0 and len(found.err.splitlines()) == 1
        assert "128 experts of size 2880, 4 per token (a feed-forward of size 11520)" in found.err
        assert not any(part in found.err for part in ("sinks", "rotary angles"))
    assert asked(*words, "--model", "llama3-8b").err == ""
    written(tmp_path, {"model_type": "falcon"})
    refusal = asked(*words, "--model", str(tmp_path))
    assert refusal.code == 2 and len(refusal.err.splitlines()) == 1
    listed = asked("list", "models").out
    assert all(name in listed for name in profile_names("models")) and "128 experts of size 2880" in listed
    assert re.search(r"gpt-oss-120b +sinks, 36 layers", listed) and "sinks (omitted)" not in listed
