"""Collectives of a compiled program's text, in every form that a compiler prints."""

import pytest

from stripectl.core.workload import Workload
from stripectl.hlo.module import Collective, collectives, parse_module, sent_bytes_by_opcode
from stripectl.hlo.rewrites import rewrites

WORK = Workload(seq_len=384, heads=8, kv_heads=8, head_dim=16, dtype="float32")


@pytest.mark.parametrize(
    ("result", "opcode", "sent"),
    [
        ("f32[8,100]{1,0} all-gather(%a), replica_groups={{0,1,2,3,4,5,6,7}}", "all-gather", 2800),
        ("(f32[8,100], f32[8,100]) all-gather(%a, %b), replica_groups=[1,8]<=[8]", "all-gather", 5600),
        (
            "f32[8,100] all-gather(%a), replica_groups=mesh['x'=4,'y'=2], device_ids=([4,2]T(1,0)) {'x'}",
            "all-gather",
            2400,
        ),
        (
            "f32[8,100] all-gather(%a), replica_groups=mesh['x'=4,'y'=2] {'x':(2)2,'y'}, dimensions={0}",
            "all-gather",
            2400,
        ),
        ("f32[100] all-reduce(%a), replica_groups=mesh['x'=4,'y'=2] {'y'}, to_apply=%add", "all-reduce", 400),
        ("(f32[100], f32[8,100]) all-gather-start(%a), replica_groups={{0,1,2,3,4,5,6,7}}", "all-gather", 2800),
        ("(bf16[100], bf16[100], u32[], u32[]) collective-permute-start(%a)", "collective-permute", 200),
        ("((f32[100], f32[100]), (f32[100], f32[100])) collective-permute-start(%a, %b)", "collective-permute", 800),
        ("f32[8,100] all-to-all(%a), replica_groups={{0,1,2,3}}, dimensions={0}", "all-to-all", 2400),
        ("(f32[8,50], f32[8,50]) all-to-all(%a, %b), replica_groups={{0,1},{2,3}}", "all-to-all", 1600),
        ("f32[100] reduce-scatter(%a), replica_groups={{0,1,2,3}}, to_apply=%add", "reduce-scatter", 1200),
    ],
)
def test_bytes_of_collectives_in_every_form(result: str, opcode: str, sent: int) -> None:
    text = "\n".join(
        [
            "%add (x: f32[]) -> f32[] {",
            "  ROOT %x = f32[] parameter(0)",
            "}",
            "ENTRY %main (a: f32[100]) -> f32[] {",
            f"  %c = {result}",
            "}",
        ]
    )
    assert sent_bytes_by_opcode(collectives(parse_module(text))) == {opcode: sent}


def test_loops_without_a_known_trip_count_say_it_in_their_condition() -> None:
    text = """
%body (p: (s32[], f32[10])) -> (s32[], f32[10]) {
  %c = f32[10] collective-permute(%x), source_target_pairs={{0,1},{1,0}}
}
%condition (p: (s32[], f32[10])) -> pred[] {
  %n = s32[] constant(7)
}
ENTRY %main (a: f32[10]) -> f32[10] {
  %w = (s32[], f32[10]) while(%t), condition=%condition, body=%body
}"""
    assert sent_bytes_by_opcode(collectives(parse_module(text))) == {"collective-permute": 7 * 40}


def test_a_collective_that_is_printed_where_it_starts_goes_on_and_ends_counts_once() -> None:
    gather = 'f32[8,100] all-gather(%p), channel_id=2, replica_groups={{0,1}}, frontend_attributes={chain_id="0"}'
    text = f"""
%start (p: f32[4,100]) -> f32[8,100] {{
  %g.1 = {gather}
  ROOT %s = (f32[4,100], f32[8,100]) custom-call(%g.1), custom_call_target="AsyncCollectiveStart"
}}
%async_collective_fusion.1 (p: f32[4,100]) -> f32[8,100] {{
  %g.2 = {gather}
}}
%end (p: f32[4,100]) -> f32[8,100] {{
  %g.3 = {gather}
  ROOT %d = f32[8,100] custom-call(%p, %g.3), custom_call_target="AsyncCollectiveDone"
}}
ENTRY %main (a: f32[4,100]) -> f32[8,100] {{
  %async-collective-start = (f32[4,100], f32[8,100]) fusion(%a), kind=kCustom, calls=%start
  %fusion = f32[8,100] fusion(%async-collective-start), kind=kCustom, calls=%async_collective_fusion.1
  ROOT %async-collective-done = f32[8,100] fusion(%fusion), kind=kCustom, calls=%end
}}"""
    assert sent_bytes_by_opcode(collectives(parse_module(text))) == {"all-gather": 1600}


def test_what_no_rewrite_explains_is_unexplained() -> None:
    sent = [Collective("collective-permute", "f32", 400, 3)]
    named = rewrites(WORK, {("collective-permute", 100, 2): 2}, sent)
    assert {each.name: (each.transfers, each.bytes) for each in named} == {
        "widening": (2, 400),
        "unexplained": (1, 400),
    }


def test_an_all_to_all_in_parts_is_one_transfer() -> None:
    """As a CPU has it: a part for every device, of which one stays."""
    text = (
        "ENTRY %main (a: f32[4,10]) -> f32[] {\n  %c = (f32[10], f32[10], f32[10], f32[10]) all-to-all(%a, %b, %c, %d)"
    )
    found = collectives(parse_module(text + ", replica_groups={{0,1,2,3}}\n}"))
    assert found == [Collective("all-to-all", "f32", 3 * 40, 1)]
