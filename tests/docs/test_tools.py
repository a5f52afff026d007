"""The check of prose finds phrases where people read and nowhere else; tables of the reference cannot go stale."""

import importlib.util
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.docs.pages import ROOT


def load(path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def prose(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = load(ROOT / "tools" / "prose.py", "prose", monkeypatch)
    (tmp_path / "tools").mkdir()
    text = (ROOT / "tools" / "prose.toml").read_text()
    (tmp_path / "tools" / "prose.toml").write_text(text.partition("[allowed]")[0] + text[text.index("[phrases") :])
    monkeypatch.setattr(module, "ROOT", tmp_path)
    return module


@pytest.mark.parametrize(
    ("sentence", "name"),
    [
        ("It sends 4 MiB a device.", "no per"),
        ("Schemes by commas, or all.", "comma-separated"),
        ("The command goes on with the run.", "continue"),
        ("A change is none.", "is none"),
        ("What was found is kept.", "begins with a clause"),
        ("What is a layout?", None),
        ("The bytes equal those of the program.", "stands for a noun"),
        ("A yardstick is timed beside it.", "beside"),
        ("Rows are dealt to devices.", "metaphor"),
        ("It has 1 devices.", "plural"),
        ("Leave this option out.", "leave out"),
        ("Arrays of zeros and ones.", None),
        ("It reads the missing ones.", "stands for a noun, one"),
        ("Use `4 MiB a device` as text.", None),
    ],
)
def test_phrases_are_found_in_sentences(prose: ModuleType, sentence: str, name: str | None) -> None:
    (prose.ROOT / "page.md").write_text(f"# Title\n\n{sentence}\n")
    found = [each.name for each in prose.findings()]
    assert found == ([name] if name else [])


def test_code_is_no_prose_and_strings_of_python_are(prose: ModuleType) -> None:
    (prose.ROOT / "page.md").write_text("```text\nbeside\n```\n\n```{generated} x\nname: beside\n```\n")
    code = (
        'beside = 1\nraise ValueError("it is beside the others")  # is on paper\nx = f"{n} bytes a {beside} device"\n'
    )
    (prose.ROOT / "module.py").write_text(code + 'y = f"{n}: 1 devices"\n')
    assert [(each.path, each.line) for each in prose.findings()] == [("page.md", 6)]
    found = [(each.line, each.name) for each in prose.findings(["*.py"])]
    assert sorted(found) == [(2, "beside"), (2, "simulated"), (4, "plural")]


def test_an_exception_that_is_not_needed_is_a_finding(prose: ModuleType) -> None:
    settings = prose.ROOT / "tools" / "prose.toml"
    settings.write_text(settings.read_text() + '\n[allowed]\n"page.md: beside" = "a reason"\n')
    page = prose.ROOT / "page.md"
    page.write_text("It is beside.\n")
    assert prose.findings() == []
    page.write_text("It is here.\n")
    assert [each.text for each in prose.findings()] == ["page.md: beside"]


def test_a_table_of_explanations_names_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sphinx", reason="the documentation needs the dependency group docs")
    generated = load(ROOT / "docs" / "_ext" / "generated.py", "generated", monkeypatch)
    assert generated.explained(["a", "b"], {"b": "2", "a": "1"}) == [("a", "1"), ("b", "2")]
    with pytest.raises(ValueError, match="not explained: b"):
        generated.explained(["a", "b"], {"a": "1"})
    with pytest.raises(ValueError, match="not in the code: c"):
        generated.explained(["a"], {"a": "1", "c": "3"})
    assert generated.markdown_table(("x",), [("a|b\nc",)]) == "| x |\n| --- |\n| a\\|b c |"
    assert generated.kind_of([1, None]) == "number" and generated.kind_of([["a"], None]) == "list of text"
    assert generated.kind_of([{"a": 1}, {"b": 2}]) == "mapping of `a`, `b`"


def test_pictures_that_differ_from_the_code_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pictures = load(ROOT / "docs" / "pictures.py", "pictures", monkeypatch)
    shutil.copytree(pictures.IMAGES, tmp_path / "images")
    monkeypatch.setattr(pictures, "IMAGES", tmp_path / "images")
    monkeypatch.setattr(sys, "argv", ["pictures.py", "--check"])
    pictures.main()
    (tmp_path / "images" / "ring.svg").write_text("<svg/>")
    with pytest.raises(SystemExit, match=r"ring\.svg"):
        pictures.main()
    assert pictures.ring_order() == [[0, 3, 2, 1], [1, 0, 3, 2], [2, 1, 0, 3], [3, 2, 1, 0]]
