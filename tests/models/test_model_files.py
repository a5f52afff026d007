"""Models by name and from YAML files: what is accepted, and what is refused."""

import json
from pathlib import Path

import pytest
import yaml

from stripectl.core.architecture import LLAMA, Architecture
from stripectl.core.model import Model
from stripectl.core.replacement import FIGURES, replacements_text
from stripectl.core.rotary_scaling import RotaryScaling
from stripectl.core.workload import STEP, Workload
from stripectl.errors import BadInput
from stripectl.models.model_files import load_model
from stripectl.util.files import profile_names


@pytest.mark.parametrize("name", profile_names("models"))
def test_models_load(name: str) -> None:
    model = load_model(name)
    assert model.heads % model.kv_heads == 0


GOOD = "hidden: 64\nfeed_forward: 128\nlayers: 2\nheads: 4\nkv_heads: 4\nhead_dim: 16\nvocabulary: 100\n"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (GOOD.replace("heads: 4\nkv", "heads: x\nkv"), "has heads: 'x'"),
        (GOOD.replace("layers: 2\n", ""), "has no 'layers'"),
        (GOOD + "hiden: 3\n", "Did you mean hidden"),
        (GOOD + "replaced: 5\n", "replaced must be a list of parts"),
        (GOOD + "replaced: [experts]\n", "a replaced part has the key part"),
        (GOOD + "replaced: [{instead: x}]\n", "a replaced part has the key part"),
        (GOOD + "replaced: [{part: x, more: 1}]\n", "a replaced part has the key part"),
        (GOOD + "replaced: [{part: 3}]\n", "part of a replaced part must be a text"),
        (GOOD + "replaced: [{part: x, parameters: many}]\n", "the parameters of a replaced part must be an integer"),
        (GOOD + "replaced: [{part: x, distorts: [speed]}]\n", "must be a list of time, memory, bytes"),
        (GOOD + "replaced: [{part: x, distorts: [[]]}]\n", "must be a list of time, memory, bytes"),
        (GOOD + "vector_parameters: 1.5\n", "vector_parameters must be an integer"),
        (GOOD + "other_parameters: 5\n", "unknown field .*'other_parameters'"),
        ("a: [1,\n", "is not YAML"),
        ("- 1\n", "is not a mapping"),
    ],
)
def test_models_that_are_refused(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(BadInput, match=why):
        load_model(str(tmp_path / "mine.yaml"))


def test_replaced_parts_are_values_and_older_files_have_a_text(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(GOOD + "replaced: experts (a feed-forward); sinks (omitted)\n")
    old = load_model(str(path))
    (text,) = old.replaced
    assert (text.part, text.instead, text.distorts) == ("experts (a feed-forward); sinks (omitted)", "", FIGURES)
    parts = (
        "[{part: experts, instead: a feed-forward, parameters: 9, distorts: [time]}, {part: sinks, instead: omitted}]"
    )
    path.write_text(f"{GOOD}vector_parameters: 30\nreplaced: {parts}\n")
    new = load_model(str(path))
    assert replacements_text(new.replaced) == replacements_text(old.replaced)
    assert (new.replaced[0].distorts, new.replaced[1].distorts) == (("time",), ())
    assert new.other_parameters == 39 == new.parameters - old.parameters
    assert new.of_layers(1).other_parameters == 19


def test_a_model_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(GOOD)
    assert load_model(str(tmp_path / "mine.yaml")).hidden == 64


def test_a_models_profile_says_its_attention(tmp_path: Path) -> None:
    hybrid = load_model("linear-llama-1b-hybrid")
    assert (hybrid.attention, load_model("tnl-1b").decay, load_model("1b").attention) == ("LLLS", "per-head", "softmax")
    own = tmp_path / "own.yaml"
    own.write_text(f"{GOOD.replace('layers: 2', 'layers: 8')}attention: LLS\n")
    with pytest.raises(BadInput, match=r"own.yaml: 8 layers are not a multiple of the pattern LLS\. Try --layers 9"):
        load_model(str(own))


def test_a_models_profile_says_its_architecture(tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text(f"{GOOD}query_key_norm: all\nrotary_scaling: {{factor: 8}}\n")
    model = load_model(str(own))
    assert model.architecture == Architecture(query_key_norm="all", rotary_scaling=RotaryScaling(8))
    work = Workload(seq_len=64, passes=STEP, model="own", **model.step_sizes)
    assert work.sizes.architecture == model.architecture
    assert Workload.from_json(json.loads(json.dumps(work.to_json()))) == work
    assert work.one_layer("forward").architecture == LLAMA
    for value, why in (("heads", "Did you mean head"), ("[all]", "must be none or head or all"), ("3", "not 3")):
        own.write_text(f"{GOOD}query_key_norm: {value}\n")
        with pytest.raises(BadInput, match=f"own.yaml: .*{why}"):
            load_model(str(own))


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("norms: never", "unknown norms 'never'"),
        ("activation: relu", "unknown activation 'relu'"),
        ("tied: 1", "tied must be true or false, not 1"),
        ("gated: none", "gated must be true or false"),
        ("attention_scale: -1", "attention_scale must be a positive number"),
        ("attention_scale: .nan", "attention_scale must be a positive number"),
        ("rotary_base: null", "rotary_base must be a positive number, not None"),
        ("rotary_base: true", "rotary_base must be a positive number"),
        (
            "rotary_scaling: 8",
            "rotary_scaling must have the keys {factor} or {factor, low, high, length} or {factor, length",
        ),
        ("rotary_scaling: {factor: 8, low: 4}", "rotary_scaling must have the keys"),
        ("rotary_scaling: {factor: 8, low: 4, high: 1, length: 9}", "low below high"),
        ("rotary_scaling: {factor: x}", "positive numbers"),
        ("norm_biases: true", "Add layer_norms: true, or omit norm_biases"),
        ("rotary_layers: some", "rotary_layers"),
        ("rotary_scaling: {factor: 8, length: 9}", "rotary_scaling must have the keys"),
        ("rotary_scaling: {factor: 8, length: 9, fast: 1, slow: 2}", "slow below fast"),
        ("rotary_scaling: {factor: 8, length: 9, fast: 2, slow: 1, whole: 1}", "whole in rotary_scaling must be true"),
        ("rotary_dim: 5", "rotary_dim must be an even number"),
        ("logit_cap: .inf", "logit_cap must be a positive number"),
    ],
)
def test_architectures_that_are_refused(tmp_path: Path, line: str, why: str) -> None:
    (tmp_path / "own.yaml").write_text(f"{GOOD}{line}\n")
    with pytest.raises(BadInput, match=f"own.yaml: .*{why}"):
        load_model(str(tmp_path / "own.yaml"))


def test_a_feed_forward_of_two_matrices_has_two(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text(f"{GOOD}gated: false\n")
    two, three = load_model(str(tmp_path / "own.yaml")), Model(name="own", **yaml.safe_load(GOOD))
    assert three.parameters - two.parameters == 2 * 64 * 128
    work = [Workload(seq_len=64, passes=STEP, **each.step_sizes) for each in (two, three)]
    assert work[1].flops - work[0].flops == 6 * 2 * 64 * 128 * 64
