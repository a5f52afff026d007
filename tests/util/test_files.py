"""YAML of anybody: what is no YAML of ours is one clear error, soon."""

import os
from pathlib import Path

import pytest

from stripectl.errors import BadInput
from stripectl.util.files import MAX_YAML_BYTES, load_yaml
from stripectl.util.output import write_atomically


def bomb(levels: int, width: int) -> str:
    """Mappings that each merge the one before `width` times."""
    merges = (f"a{i}: &a{i} {{<<: [{','.join([f'*a{i - 1}'] * width)}]}}" for i in range(1, levels))
    return "\n".join(["a0: &a0 {x: 1, y: 2}", *merges])


BAD = {
    "too many digits": f"a: {'1' * 5000}",
    "counted in sixties": f"a: {':'.join(['59'] * 3000)}",
    "no such day": "a: 2026-99-99",
    "a timestamp": "a: !!timestamp x",
    "an empty integer": 'a: !!int ""',
    "a truth": "a: !!bool x",
    "a float": "a: !!float x",
    "an object": "a: !!python/object/apply:os.getcwd []",
    "a mapping as a key": "? {a: b}\n: c",
    "deep": "[" * 10_000,
    "merged again and again": bomb(30, 9),
    "merged at once": bomb(2, 40_000),
    "half a character": "a: b".encode("utf-16")[:-1],
    "a NUL": "a: \0",
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_yaml_is_one_error(name: str, tmp_path: Path) -> None:
    path, content = tmp_path / "a.yaml", BAD[name]
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(BadInput, match=r"the suite .* is not YAML: "):
        load_yaml(path, "suite")


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("large.yaml", "larger than 256 KiB"),
        ("/dev/zero", "not a regular file"),
        ("FIFO", "not a regular file"),
        ("nowhere", "No such file"),
        ("itself", "symbolic links"),
        (".", "Is a directory"),
    ],
)
def test_what_has_no_end_is_not_read(path: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("large.yaml").write_text("#" * (MAX_YAML_BYTES + 1))
    os.mkfifo("FIFO")
    Path("nowhere").symlink_to("nothing")
    Path("itself").symlink_to("itself")
    with pytest.raises(BadInput, match=why):
        load_yaml(Path(path), "suite")


@pytest.mark.parametrize(
    "text", ["a: 1\nb: 2\na: 1", "x: {a: 1, a: 2}", "{1: a, 1: b}", "x: [{<<: {a: 1}, b: 1, b: 2}]"]
)
def test_a_name_that_occurs_twice_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(text)
    with pytest.raises(BadInput, match="occurs twice"):
        load_yaml(tmp_path / "a.yaml", "suite")


def test_anchors_and_merges_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("a: &a {x: 1}\nb: {<<: *a, y: 0x10}\nc: {<<: [*a, *a]}")
    assert load_yaml(path, "suite") == {"a": {"x": 1}, "b": {"x": 1, "y": 16}, "c": {"x": 1}}


def test_a_file_is_replaced_and_never_written_in_its_place(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text("what was known")
    with path.open() as reader:
        write_atomically(path, "what is known now")
        assert reader.read() == "what was known"
    assert path.read_text() == "what is known now" and [each.name for each in tmp_path.iterdir()] == ["run.json"]
