"""Workloads and models: what is accepted, what is refused, and their arithmetic."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stripectl.core.lengths import format_length, parse_length, parse_lengths
from stripectl.core.model_config import Model
from stripectl.core.replacement import FIGURES, replacements_text
from stripectl.core.workload import Workload
from stripectl.errors import BadInput
from stripectl.util.files import profile_names


@pytest.mark.parametrize(
    ("text", "length"), [("262144", 2**18), ("256k", 2**18), ("1M", 2**20), ("1G", 2**30), (" 16K ", 2**14)]
)
def test_lengths(text: str, length: int) -> None:
    assert parse_length(text) == length


@pytest.mark.parametrize("text", ["0", "-5", "abc", "256q", "10**12", "1000000000000", "2G", "", "1.5k", "k"])
def test_lengths_that_are_refused(text: str) -> None:
    with pytest.raises(BadInput):
        parse_length(text)


def test_grids_of_lengths() -> None:
    assert parse_lengths("16k..128k") == [2**14, 2**15, 2**16, 2**17]
    assert parse_lengths("1k,4k,1k") == [1024, 4096]
    with pytest.raises(BadInput, match="descending"):
        parse_lengths("64k..16k")


def test_lengths_are_printed_as_they_are_written() -> None:
    assert [format_length(n) for n in (2**18, 2**20, 1000, 3 * 2**10)] == ["256k", "1M", "1000", "3k"]


def test_flops_count_what_the_mask_keeps() -> None:
    work = Workload(seq_len=4, heads=2, kv_heads=1, head_dim=8, mask="causal")
    assert work.flops == 4 * 10 * 8 * 2
    backward = Workload(seq_len=4, heads=2, kv_heads=1, head_dim=8, mask="full", passes="forward-backward")
    assert backward.flops == 12 * 16 * 8 * 2


SIZES: dict[str, Any] = {"hidden": 64, "feed_forward": 128, "layers": 8, "vocabulary": 256}
SHAPE: dict[str, Any] = {"seq_len": 64, "heads": 4, "kv_heads": 4, "head_dim": 16}


def test_a_pattern_is_of_layers_again_and_again() -> None:
    work = Workload(**SHAPE, **SIZES, passes="step", attention="LLLS", decay="per-head", features="elu")
    assert work.kinds == {"linear": 6, "softmax": 2}
    assert Workload.from_json(work.to_json()) == work and work.sizes.attention == "LLLS"
    linear, softmax = work.with_attention("linear"), work.with_attention("softmax")
    assert (linear.kinds, linear.decay) == ({"linear": 8}, "per-head")
    assert (softmax.kinds, softmax.decay, softmax.features) == ({"softmax": 8}, "1", "none")
    assert work.flops == pytest.approx((6 * linear.flops + 2 * softmax.flops) / 8)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"attention": "LLLS"}, "Add --pass step"),
        ({"attention": "LLS", "passes": "step", **SIZES}, "Try --layers 9"),
        ({"attention": "LLX"}, "one letter per layer"),
        ({"attention": "LL"}, "one letter per layer"),
        ({"attention": "softmax", "decay": "per-head"}, "Add --attention linear"),
        ({"attention": "linear", "features": "relu"}, "unknown feature map"),
    ],
)
def test_attentions_that_are_refused(change: dict, why: str) -> None:
    with pytest.raises(BadInput, match=why):
        Workload(**SHAPE, **change)


def test_a_models_profile_says_its_attention(tmp_path: Path) -> None:
    hybrid = Model.load("linear-llama-1b-hybrid")
    assert (hybrid.attention, Model.load("tnl-1b").decay, Model.load("1b").attention) == ("LLLS", "per-head", "softmax")
    own = tmp_path / "own.yaml"
    sizes = "".join(f"{name}: {size}\n" for name, size in {**SHAPE, **SIZES}.items() if name != "seq_len")
    own.write_text(f"{sizes}attention: LLS\n")
    with pytest.raises(BadInput, match=r"own.yaml: 8 layers are not a multiple of the pattern LLS\. Try --layers 9"):
        Model.load(str(own))


def test_pairs_of_windows_documents_and_prefixes() -> None:
    sizes: dict[str, Any] = {"seq_len": 10, "heads": 1, "kv_heads": 1, "head_dim": 1}
    assert Workload(**sizes, mask="sliding:3").pairs == 1 + 2 + 8 * 3
    packed = Workload(**sizes, documents=(4, 3))  # 4, 3, 3
    assert packed.starts is not None and packed.starts.tolist() == [0, 4, 7]
    assert packed.pairs == 10 + 6 + 6
    assert Workload(**sizes, query_len=2).pairs == 9 + 10
    assert Workload.from_json(packed.to_json()) == packed


def test_workloads_survive_json() -> None:
    work = Workload(seq_len=4096, heads=8, kv_heads=2, head_dim=64, passes="forward-backward", model="1b")
    assert Workload.from_json(work.to_json()) == work


def test_parameters_without_a_matrix_are_of_a_step_and_written_where_there_are_any() -> None:
    plain = Workload(**SHAPE, **SIZES, passes="step")
    assert "other_parameters" not in plain.to_json()  # as in older files
    for others in (10**12, -5):
        work = replace(plain, other_parameters=others)
        assert Workload.from_json(work.to_json()) == work != plain
        assert work.sizes.parameters == plain.sizes.parameters + others
        assert work.flops == plain.flops and work.one_layer("forward").other_parameters == 0
    for others in (2.5, "1", True, None, 2**60, -plain.sizes.parameters):
        with pytest.raises(BadInput, match="other_parameters"):
            replace(plain, other_parameters=others)


@pytest.mark.parametrize(
    "change",
    [
        *({"heads": 7}, {"seq_len": 0}, {"dtype": "float16"}, {"mask": "x"}, {"batch": -1}, {"mask": "sliding:0"}),
        *({"mask": ["causal"]}, {"documents": ()}, {"documents": (0,)}, {"documents": 5}, {"documents": "4k"}),
        *({"query_len": 0}, {"query_len": 4097}, {"query_len": 1, "passes": "forward-backward"}),
        *({"query_len": 1, "documents": (64,)}, {"seq_len": 2**30, "documents": (1,)}),
    ],
)
def test_workloads_that_are_refused(change: dict) -> None:
    shape: dict[str, Any] = {"seq_len": 4096, "heads": 8, "kv_heads": 2, "head_dim": 64}
    with pytest.raises(BadInput):
        Workload(**shape | change)


@pytest.mark.parametrize("name", profile_names("models"))
def test_models_load(name: str) -> None:
    model = Model.load(name)
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
        Model.load(str(tmp_path / "mine.yaml"))


def test_replaced_parts_are_values_and_older_files_have_a_text(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(GOOD + "replaced: experts (a feed-forward); sinks (omitted)\n")
    old = Model.load(str(path))
    (text,) = old.replaced
    assert (text.part, text.instead, text.distorts) == ("experts (a feed-forward); sinks (omitted)", "", FIGURES)
    parts = (
        "[{part: experts, instead: a feed-forward, parameters: 9, distorts: [time]}, {part: sinks, instead: omitted}]"
    )
    path.write_text(f"{GOOD}vector_parameters: 30\nreplaced: {parts}\n")
    new = Model.load(str(path))
    assert replacements_text(new.replaced) == replacements_text(old.replaced)
    assert (new.replaced[0].distorts, new.replaced[1].distorts) == (("time",), ())
    assert new.other_parameters == 39 == new.parameters - old.parameters
    assert new.of_layers(1).other_parameters == 19


def test_a_model_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(GOOD)
    assert Model.load(str(tmp_path / "mine.yaml")).hidden == 64
