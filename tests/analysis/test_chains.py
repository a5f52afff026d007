"""Which way to exchange states is fastest where, and why, as it is said."""

from pathlib import Path

import pytest

from stripectl.analysis.notes.lasp_or_lasp2 import chain_and_gather
from stripectl.analysis.notes.state_exchanges import state_exchanges
from stripectl.results.run import Run
from stripectl.util.units import nbytes
from tests.support.command import run


def test_a_bench_of_both_says_which_wins_at_which_length_and_why(tmp_path: Path, capsys) -> None:
    """At 2k there is nothing to hide seven hops behind, and a gather goes both ways round; at 1M both are short."""
    words = (
        "--scheme lasp,lasp2 --decay per-head --seqlen 2k,1M --pass forward --target v5e:2x4 --method simulated --quiet"
    )
    assert run("bench", *words.split(), "--output", str(tmp_path / "run")) == 0
    printed = " ".join(capsys.readouterr().out.split())
    (said,) = chain_and_gather(Run.load(tmp_path / "run"))
    assert said in printed and said in " ".join((tmp_path / "run" / "report.html").read_text().split())
    assert "at 2k lasp2 is faster, by up to" in said and "lasp is faster" not in said
    assert "lasp makes 7 hops of 1.00 MiB, independent of the length, one after the other (170 us" in said
    assert "at 1M they are too close to tell" in said
    times = {(m.workload.seq_len, str(m.plan)[:5]): m.median_s or 0.0 for m in Run.load(tmp_path / "run").measurements}
    assert times[2**11, "lasp/"] > 1.2 * times[2**11, "lasp2"]
    assert times[2**20, "lasp/"] == pytest.approx(times[2**20, "lasp2"], rel=1e-2)


TWICE = ", each over twice as many links as the one before"


@pytest.mark.parametrize(
    ("target", "long", "rounds"),
    [("2*h100:8", "lasp2 is the fastest", ""), ("v5p:2x2x4", "lasp and lasp2 are too close to tell", TWICE)],
)
def test_a_bench_of_a_recurrence_says_why_the_winner_changes(
    target: str, long: str, rounds: str, tmp_path: Path, capsys
) -> None:
    """All-to-alls send every token, and maps have the same size at any length."""
    words = "--recurrence gdn --heads 64 --head-dim 128 --scheme lasp,lasp2,linear_scan,ulysses --seqlen 4k,256k"
    words += f" --pass forward --target {target} --method simulated --quiet"
    assert run("bench", *words.split(), "-o", str(tmp_path / "run")) == 0
    printed = " ".join(capsys.readouterr().out.split())
    found = Run.load(tmp_path / "run")
    (line,) = state_exchanges(found)
    assert line in printed and chain_and_gather(found) == []
    assert f"at 4k ulysses is the fastest; at 256k {long}." in line
    maps = 4 * 64 * 128 * (128 + 128)  # bytes of a delta rule's maps, of which a half is a state
    assert f"lasp2 sends {nbytes(15 * maps)} in 1 gather (" in line
    assert f"lasp sends {nbytes(15 * maps // 2)} in 15 hops, one after the other (" in line
    assert f"linear_scan sends {nbytes(3 * maps + maps // 2)} in 4 rounds{rounds} (" in line
    per_token = 64 * (4 * 128 * 2 + 2 * 4)  # bytes of queries, keys, values, outputs and two gates
    tokens = [nbytes(length // 16 * per_token * 15 // 16) for length in (2**12, 2**18)]
    assert f"ulysses sends every token, {tokens[0]} (" in line and f"and {tokens[1]} (" in line
