"""What a tile search says about tiles that only a raised limit of a core's memory allows."""

import re
from pathlib import Path

import pytest

import stripectl
from stripectl.cli import main
from stripectl.costs.core_memory import VMEM_FLAG
from stripectl.errors import BadInput
from stripectl.results.measurement import Measurement
from stripectl.util.units import duration

OPTIONS = ["--target", "v5p:2x2x4", "--model", "llama3-8b", "--seqlen", "128k", "--pass", "forward"]


def timed(plan: str, *flags: str) -> Measurement:
    run = stripectl.bench(
        plan=plan,
        xla_flag=flags,
        target="v5p:2x2x4",
        model="llama3-8b",
        seqlen="128k",
        pass_="forward",
        method="simulated",
        progress=False,
    )
    return run.measurements[0]


def tuned(folder: Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    command = [
        "tune-tiles",
        *OPTIONS,
        "--method",
        "simulated",
        "--no-cache",
        "--output",
        str(folder / "run"),
        *arguments,
    ]
    with pytest.raises(SystemExit) as ended:
        main(command)
    printed = capsys.readouterr()
    assert ended.value.code == 0, printed.err
    return printed.out


def test_a_search_says_what_a_raised_limit_would_bring(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tuned(tmp_path, capsys, "--plan", "ring/zigzag/splash@ring=16")
    said = re.search(rf"limit +--xla-flag ({VMEM_FLAG}=\d+) allows (\S+): simulated (.+?) in place of (.+?) with", out)
    assert said
    raised, usual = timed(said[2], said[1]), timed("ring/zigzag/splash@ring=16")
    assert raised.status == usual.status == "ok" and raised.median_s and usual.median_s
    assert (said[3], said[4]) == (duration(raised.median_s), duration(usual.median_s))
    with pytest.raises(BadInput, match=re.escape(f"xla_flag='{said[1]}'")):
        timed(said[2])


@pytest.mark.parametrize(
    "arguments",
    [
        ("--plan", "ring/zigzag/splash@ring=16", "--xla-flag", f"{VMEM_FLAG}={2**16}"),
        ("--plan", "ring/zigzag/pallas_tpu@ring=16"),
    ],
)
def test_it_says_nothing_where_the_limit_is_as_high_as_the_core(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    assert "limit  " not in tuned(tmp_path, capsys, *arguments)
