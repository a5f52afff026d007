"""What is kept on disk is found again, and never stands in the way."""

from pathlib import Path

import pytest

from stripectl.util import disk_cache


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "stripectl"


def test_a_key_finds_what_was_kept_under_it_and_no_other(elsewhere: Path) -> None:
    assert disk_cache.load({"plan": "a", "flags": {}}) is None
    disk_cache.store({"plan": "a", "flags": {}}, {"peak_bytes": 1})
    assert disk_cache.load({"flags": {}, "plan": "a"}) == {"peak_bytes": 1}
    assert disk_cache.load({"plan": "a", "flags": {"x": "1"}}) is None
    assert len(list(elsewhere.iterdir())) == 1


def test_another_program_of_stripectl_finds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    disk_cache.store("a", 1)
    monkeypatch.setattr(disk_cache, "program_digest", lambda: "another")
    assert disk_cache.load("a") is None


def test_half_a_file_and_a_folder_that_cannot_be_written_are_as_nothing(elsewhere: Path) -> None:
    disk_cache.store("a", {"peak_bytes": 1})
    next(elsewhere.iterdir()).write_text('{"peak_b')
    assert disk_cache.load("a") is None
    next(elsewhere.iterdir()).unlink()
    elsewhere.rmdir()
    elsewhere.write_text("a file where the folder should be")
    disk_cache.store("a", 1)
    assert disk_cache.load("a") is None
