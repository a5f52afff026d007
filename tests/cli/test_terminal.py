"""The table of a bench on a terminal of 100 columns: which plans and columns it has, and how to see the others."""

import io
import re

import pytest

from stripectl.cli.app import main

BENCH = "bench --target v5e:2x2 --seqlen 16k --scheme ring,ulysses --pass forward --method simulated --heads 8 --quiet"
LEFT_OUT = re.compile(r"^  (?:(\d+) more plans?: --all-plans)?(?:; )?(?:columns (.+): --wide)?$", re.M)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch, tmp_path):
    """The lines of a bench's table, with options, on a terminal."""

    def run(*options: str) -> list[str]:
        screen = Terminal()
        monkeypatch.setattr("sys.stdout", screen)
        monkeypatch.setattr("stripectl.reporters.html.page.write_report", lambda *_: None)  # a page takes seconds
        monkeypatch.setenv("COLUMNS", "100")
        monkeypatch.setenv("NO_COLOR", "1")
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.chdir(tmp_path)
        with pytest.raises(SystemExit) as ended:
            main([*BENCH.split(), *options])
        assert ended.value.code == 0
        plain = re.sub(r"\x1b\[[0-9;]*m|\x1b\]8;[^\x1b]*\x1b\\", "", screen.getvalue())
        return plain.splitlines()

    return run


def rows(lines: list[str]) -> tuple[list[str], list[str]]:
    """(the names of the columns, the lines of plans) of the table."""
    at = next(i for i, line in enumerate(lines) if line.startswith("plan "))
    end = next(i for i in range(at, len(lines)) if not lines[i] or lines[i].startswith("  "))
    return re.split(r"\s{2,}", lines[at].strip()), [line for line in lines[at + 1 : end] if "/" in line.split()[0]]


def test_a_narrow_terminal_shows_the_best_plan_of_each_scheme_and_says_what_it_leaves_out(shown) -> None:
    lines = shown()
    columns, plans = rows(lines)
    assert max(map(len, lines[: lines.index("")])) <= 100
    left_out = next(found for line in lines if (found := LEFT_OUT.match(line)) and found[0].strip())
    every, all_plans = rows(shown("--all-plans"))
    assert int(left_out[1]) == len(all_plans) - len(plans) > 0
    assert columns == every
    assert len({line.split("/")[0] for line in plans}) == 2, "each scheme is there"


def test_wide_shows_every_column_and_no_more_plans(shown) -> None:
    narrow, plans = rows(shown())
    left_out = next(found for line in shown() if (found := LEFT_OUT.match(line)) and found[2])
    wide, of_wide = rows(shown("--wide"))
    assert wide == [*narrow, *left_out[2].split(", ")]
    assert [line.split()[0] for line in of_wide] == [line.split()[0] for line in plans]
    assert not any("--wide" in line for line in shown("--wide"))


def test_a_pipe_has_everything(shown, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Terminal, "isatty", lambda self: False)
    columns, plans = rows(shown())
    assert "MFU" in columns and len(plans) == len(rows(shown("--all-plans"))[1])
