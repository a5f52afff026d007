"""Which scheme wins at which length, of runs made by hand."""

import io
from dataclasses import replace
from typing import Any

import pytest
from click.testing import CliRunner
from rich.console import Console

from stripectl.analysis.by_length import QUESTION, SchemesByLength, schemes_by_length
from stripectl.analysis.by_length_notes import by_length_notes
from stripectl.analysis.ranking import rankings
from stripectl.analysis.recommendation import recommend
from stripectl.cli.bench import command
from stripectl.core.plan import UNSHARDED, parse_plan, read_plan
from stripectl.core.workload import Workload
from stripectl.reporters.by_length_rows import cell_words, winner_rows
from stripectl.reporters.terminal.by_length import by_length_tables, matrix_row
from stripectl.results.measurement import Measurement
from stripectl.runner.meshes import promising_plans
from tests.support.factories import because, measurement_of, run_of
from tests.support.pages import content_of, page_of

WORK = Workload(seq_len=2**14, heads=16, kv_heads=16, head_dim=128, model="1b")
CUT, WHOLE = "ring=16,tile=1024", "tensor=16,tile=1024"
FULL = "does not fit: needs 2.00 GiB more memory. Out of memory."


def timed(scheme: str, tokens_k: int, seconds: float | None, on: str = CUT, **given: Any) -> Measurement:
    """On 16 devices, by clocks; without a time refused."""
    why = None if seconds else because(f"{tokens_k} heads cannot be divided over 3. Try 4.")
    known: dict[str, Any] = {"cost_source": {"source": "datasheet"}, "reason": why}
    plan, work = parse_plan(f"{scheme}/zigzag/splash@{on}"), replace(WORK, seq_len=tokens_k * 2**10)
    return measurement_of(plan, seconds, work, "v5p:2x2x4", **known | given)


def contest(*measurements: Measurement) -> SchemesByLength:
    (found,) = schemes_by_length(measurements)
    return found


def crossing() -> list[Measurement]:
    """all_gather wins twice, then ring does."""
    ring = [timed("ring", 16, 1.5), timed("ring", 64, 2.2), timed("ring", 256, 4.0)]
    return [*ring, timed("all_gather", 16, 1.0), timed("all_gather", 64, 2.0), timed("all_gather", 256, 5.0)]


def test_the_winner_of_each_length_and_who_follows() -> None:
    found = contest(*crossing())
    assert [each.winner for each in found.lengths] == ["all_gather", "all_gather", "ring"]
    assert [each.runner_up for each in found.lengths] == ["ring", "ring", "all_gather"]
    assert [each.cells["ring"].ratio for each in found.lengths] == pytest.approx([1.5, 1.1, 1.0])
    assert found.answer == "all_gather from 16k to 64k; ring at 256k."
    assert winner_rows(found)[1] | {"plan": "", "next": ""} == {
        **{"tokens": "64k", "winner": "all_gather", "plan": "", "time": "2.00 s ◇"},
        **{"margin": "10.0% ahead of ring", "next": "", "refused": "0"},
    }
    assert matrix_row(found, "ring") == {"16k": "1.50x 1.50 s ◇", "64k": "1.10x 2.20 s ◇", "256k": "best 4.00 s ◇"}
    assert list(found.schemes) == ["all_gather", "ring"]


def test_the_order_of_the_run_does_not_matter() -> None:
    assert winner_rows(contest(*crossing()[::-1])) == winner_rows(contest(*crossing()))


def test_what_clocks_cannot_tell_apart_is_a_tie() -> None:
    found = contest(*crossing()[:5], timed("all_gather", 256, 4.01))
    assert found.lengths[2].leaders == ("ring", "all_gather")
    assert found.answer.endswith("; ring or all_gather (too close to tell) at 256k.")
    assert cell_words(found.lengths[2], "all_gather") == ("1.00x tie", "4.01 s", "◇")
    assert winner_rows(found)[2]["margin"] == "0.2% ahead of all_gather, too close"


def test_the_best_plan_of_a_scheme_and_the_memory_it_needs() -> None:
    room = {"method": "compiled", "peak_bytes": 2**33, "hbm_bytes": 2**35}
    slower = [timed("ring", 256, 9.0, "ring=8,tensor=2,tile=1024")]
    found = contest(*slower, *(replace(m, **room) for m in crossing()))
    row = winner_rows(found)[2]
    assert (row["time"], row["memory"]) == ("4.00 s ■", "25% of 32.0 GiB")
    assert "memory" not in winner_rows(contest(*crossing()))[0]


def test_a_scheme_that_is_refused_says_why_and_one_that_was_not_asked_is_unknown() -> None:
    found = contest(
        *crossing()[1:], timed("all_gather", 256, None, "ring=2,tensor=8,tile=1024"), timed("ring", 1, None)
    )
    lengths = {each.seq_len // 2**10: each for each in found.lengths}
    assert cell_words(lengths[1], "ring") == ("refused", "", "")
    assert cell_words(lengths[1], "all_gather") == cell_words(lengths[16], "ring") == ("n/a", "", "")
    assert lengths[1].winner is None and winner_rows(found)[0]["winner"] == "n/a"
    assert found.answer.startswith("no plan has a time at 1k; all_gather")
    assert "ring has no time at 1k: 1 plan, 1 heads cannot be divided over 3" in by_length_notes(found)
    assert [row["refused"] for row in winner_rows(found)] == ["1", "0", "0", "1"]


def test_a_time_is_set_against_the_winners_by_the_same_method() -> None:
    compiled = [replace(m, method="compiled", median_s=2 * (m.median_s or 0)) for m in crossing()[:3]]
    found = contest(*crossing(), *compiled)
    assert {each.winner for each in found.lengths} == {"ring"}
    assert cell_words(found.lengths[2], "all_gather") == ("1.25x", "5.00 s", "◇")
    assert cell_words(found.lengths[0], "all_gather") == ("0.67x tie", "1.00 s", "◇")
    assert winner_rows(found)[2]["margin"] == "25.0% ahead of all_gather ◇"
    first = by_length_notes(found)[0]
    assert first.startswith("a plan that is only simulated may be slower when it is compiled")
    assert first.endswith("--refine 2")
    alone = contest(*crossing()[3:], *compiled)
    assert cell_words(alone.lengths[2], "all_gather") == ("n/a", "5.00 s", "◇")
    assert alone.lengths[2].runner_up is None and alone.lengths[2].leaders == ("ring",)


def test_a_plan_that_does_not_cut_the_sequence_stands_for_no_scheme() -> None:
    whole = [timed(scheme, length, 0.9, WHOLE) for scheme in ("ring", "all_gather") for length in (16, 64)]
    found = contest(*crossing(), *whole)
    assert list(found.schemes) == [UNSHARDED, "ring", "all_gather"]
    assert found.lengths[0].winner == UNSHARDED and found.lengths[0].cells["ring"].ratio == pytest.approx(1.5 / 0.9)
    assert by_length_notes(found) == [
        "unsharded: each sequence stays on one device; devices share only batch and heads"
    ]
    assert not schemes_by_length(whole) and not schemes_by_length([*whole, *crossing()[:3]])


def test_what_a_compiler_refuses_is_out_whatever_clocks_say_of_its_like() -> None:
    refused = timed("ring", 256, None, WHOLE, method="compiled", reason=because(FULL))
    whole = [timed("ring", 256, 1.0, WHOLE), timed("all_gather", 256, 1.0, WHOLE), timed("all_gather", 16, 0.5, WHOLE)]
    whole.append(timed("memory_efficient", 256, 1.0, WHOLE))
    found = contest(*crossing(), *whole, refused)
    assert (found.lengths[0].winner, found.lengths[2].winner) == (UNSHARDED, "ring")
    assert cell_words(found.lengths[2], UNSHARDED) == ("refused", "", "")
    assert "unsharded has no time at 256k: 1 plan, does not fit: needs 2.00 GiB more memory" in by_length_notes(found)
    best = [each.best for each in rankings([*crossing(), *whole, refused]) if each.workload.seq_len == 2**18]
    assert [m.plan for m in best] == [timed("ring", 256, 1.0).plan]


def test_only_like_is_compared_with_like() -> None:
    assert not schemes_by_length(crossing()[:3]) and not schemes_by_length([crossing()[0], crossing()[3]])
    both = [*crossing(), *(replace(m, workload=replace(m.workload, passes="forward-backward")) for m in crossing())]
    assert [each.workload.passes for each in schemes_by_length(both)] == ["forward", "forward-backward"]
    full = replace(crossing()[3], workload=replace(WORK, mask="full"))
    assert not schemes_by_length([*crossing()[:3], full])
    assert len(schemes_by_length([*crossing(), replace(full, plan=read_plan("nothing known"))])) == 1


@pytest.mark.parametrize("width", [60, 80, 200])
def test_it_fits_the_screen(width: int) -> None:
    refused = timed("ring", 1, None, reason=because("a reason of many words, " * 20))
    screen = Console(width=width, file=io.StringIO())
    for part in by_length_tables([*crossing(), refused], width):
        screen.print(part)
    shown = screen.file.getvalue()  # type: ignore
    assert shown.strip().startswith(QUESTION) and max(map(len, shown.splitlines())) <= width
    assert ("too narrow for:" in shown) == (width < 200)
    assert "1.50x" in shown and "best" in shown and "refused" in shown


def test_the_most_promising_are_the_best_of_every_scheme_and_then_of_every_mesh() -> None:
    slow, fast = timed("ring", 16, 3.0), timed("ring", 16, 2.0, "ring=4,tensor=4,tile=1024")
    other, whole = timed("all_gather", 16, 2.5, "ring=4,tensor=4,tile=1024"), timed("ring", 16, 4.0, WHOLE)
    assert promising_plans([slow, fast, whole]) == [fast, slow, whole]
    assert promising_plans([slow, fast, other, whole]) == [fast, other, whole, slow]


def test_the_report_shows_the_same() -> None:
    run = run_of(*crossing(), timed("ring", 1, None))
    (group,) = content_of(run)["sections"]["lengths"]["groups"]
    assert group["title"].startswith("model 1b, 1k to 256k tokens")
    _, part = group["charts"]
    cells = {(cell.across, cell.down): cell for cell in part.drawing.cells}
    assert len(cells) == 8 and cells["16k", "all_gather"].wins and cells["16k", "all_gather"].fullness == 1
    assert cells["64k", "ring"].fullness > cells["16k", "ring"].fullness > cells["1k", "ring"].fullness == 0
    assert ["1k", "ring", "1 plan, 1 heads cannot be divided over 3"] in [
        [*row[:2], row[-1]] for row in part.table["rows"]
    ]
    page = page_of(run)
    assert all(said in page for said in (f">{QUESTION}</h2>", ">1.10x</text>", ">best</text>", ">refused</text>"))
    assert recommend(run) and f"{QUESTION}</h2>" not in page_of(replace(run, measurements=crossing()[:3]))


def test_a_bench_of_all_schemes_and_meshes_says_who_wins_where(tmp_path) -> None:
    what = ["--target", "v5p:8", "--method", "simulated", "--pass", "forward", "--seqlen", "16k,64k", "--quiet"]
    done = CliRunner().invoke(command, [*what, "--scheme", "all", "--mesh", "auto", "--output", str(tmp_path / "run")])
    assert done.exit_code == 0 and f"{QUESTION} forward, model 1b, 16k to 64k tokens" in done.stdout
    rows = [line for line in done.stdout.splitlines() if line.startswith(("ring/", "all_gather/"))]
    assert "plans are in run.json and the report" in done.stdout and len(rows) <= 2 * 12
