"""Workloads: what is accepted, what is refused, and their arithmetic."""

from dataclasses import replace
from typing import Any

import pytest

from stripectl.core.layer_kinds import LayerKind
from stripectl.core.lengths import format_length, parse_length, parse_lengths
from stripectl.core.workload import Workload
from stripectl.errors import BadInput


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


LINEAR, SOFTMAX = LayerKind("linear", "causal"), LayerKind("softmax", "causal")
SIZES: dict[str, Any] = {"hidden": 64, "feed_forward": 128, "layers": 8, "vocabulary": 256}
SHAPE: dict[str, Any] = {"seq_len": 64, "heads": 4, "kv_heads": 4, "head_dim": 16}


def test_a_pattern_is_of_layers_again_and_again() -> None:
    work = Workload(**SHAPE, **SIZES, passes="step", attention="LLLS", decay="per-head", features="elu")
    assert work.kinds == {LINEAR: 6, SOFTMAX: 2}
    assert Workload.from_json(work.to_json()) == work and work.sizes.attention == "LLLS"
    linear, softmax = work.of_kind(LINEAR), work.of_kind(SOFTMAX)
    assert (linear.kinds, linear.decay) == ({LINEAR: 8}, "per-head")
    assert (softmax.kinds, softmax.decay, softmax.features) == ({SOFTMAX: 8}, "1", "none")
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
