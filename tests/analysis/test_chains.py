"""Which of lasp and lasp2 wins where, and why, as it is said."""

from pathlib import Path

import pytest

from stripectl.analysis.lasp_or_lasp2 import chain_and_gather
from stripectl.cli import main
from stripectl.results.run import Run


def test_a_bench_of_both_says_which_wins_at_which_length_and_why(tmp_path: Path, capsys) -> None:
    """At 2k there is nothing to hide seven hops behind, and a gather goes both ways round; at 1M both hide."""
    words = "--scheme lasp,lasp2 --decay tnl --seqlen 2k,1M --pass forward --target v5e:2x4 --method simulated --quiet"
    with pytest.raises(SystemExit) as done:
        main(["bench", *words.split(), "--output", str(tmp_path / "run")])
    assert done.value.code == 0
    printed = " ".join(capsys.readouterr().out.split())
    (said,) = chain_and_gather(Run.load(tmp_path / "run").measurements)
    assert said in printed and said in " ".join((tmp_path / "run" / "report.html").read_text().split())
    assert "at 2k lasp2 is faster, by up to" in said and "lasp is faster" not in said
    assert "lasp makes 7 hops of 1.00 MiB, independent of the length, one after the other (170 us" in said
    assert "at 1M they are too close to tell" in said
    times = {(m.workload.seq_len, str(m.plan)[:5]): m.median_s or 0.0 for m in Run.load(tmp_path / "run").measurements}
    assert times[2**11, "lasp/"] > 1.2 * times[2**11, "lasp2"]
    assert times[2**20, "lasp/"] == pytest.approx(times[2**20, "lasp2"], rel=2e-3)
