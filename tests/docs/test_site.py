"""The site builds without a warning and without network, every name is on a reference page, and every link resolves."""

import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import click
import pytest

from stripectl.cli.app import COMMANDS, group
from stripectl.core.mesh import AXES
from stripectl.core.plan import NUMBER_OPTIONS, TILE_OPTIONS, WORD_OPTIONS, kernels, layouts, schemes
from stripectl.errors import StripectlError
from stripectl.hardware.profile import hardware_names
from stripectl.hardware.profile_fields import FIGURES
from stripectl.util.files import profile_names
from tests.docs.pages import ROOT

pytest.importorskip("sphinx", reason="the documentation needs the dependency group docs")


class Page(HTMLParser):
    """The anchors, the links and what is loaded of a page; the words in its code, and all its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors, self.links, self.loaded = set[str](), set[str](), set[str]()
        self.code, self.text, self._depth = set[str](), [], 0
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        known = {name: value or "" for name, value in attrs}
        self.anchors |= {known[name] for name in ("id", "name") if name in known}
        if tag == "a" and "href" in known:
            self.links.add(known["href"])
        if tag in ("script", "img", "source") and "src" in known:
            self.loaded.add(known["src"])
        if tag == "link" and known.get("rel") == "stylesheet":
            self.loaded.add(known["href"])
        self._depth += tag in ("code", "pre")

    def handle_endtag(self, tag: str) -> None:
        self._depth -= tag in ("code", "pre")

    def handle_data(self, data: str) -> None:
        self.text.append(data)
        if self._depth:
            self.code |= set(re.findall(r"[\w./=-]+", data))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Page]:
    """The pages of the site by their paths. No proxy and no name server is reached: the build has no network."""
    out = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "sphinx", "--fail-on-warning", "--keep-going", "--quiet", "--fresh-env"]
    done = subprocess.run([*build, "--builder", "html", "docs", str(out)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr, done.stderr
    return {path.relative_to(out).as_posix(): Page(path.read_text()) for path in out.rglob("*.html")}


def code_of(site: dict[str, Page], *names: str) -> set[str]:
    return set().union(*(site[f"reference/{name}.html"].code for name in names))


@pytest.mark.docs
def test_every_name_is_on_its_reference_page(site: dict[str, Page]) -> None:
    assert code_of(site, "schemes") >= {*schemes.names()}
    assert code_of(site, "layouts") >= {*layouts.names()}
    assert code_of(site, "kernels") >= {*kernels.names()}
    assert code_of(site, "hardware") >= {*hardware_names()}
    assert code_of(site, "models") >= {*profile_names("models")}
    assert code_of(site, "plans") >= {*AXES}
    options = (*TILE_OPTIONS, *NUMBER_OPTIONS, *WORD_OPTIONS, "softmax")
    assert {word.partition("=")[0] for word in code_of(site, "plans") if "=" in word} >= {*options}
    assert {word for word in code_of(site, "hardware") if word in FIGURES} >= {"hbm_bytes", "hbm_bytes_per_s"}


def every_option() -> Iterator[tuple[str, str]]:
    for name in COMMANDS:
        command = group.get_command(click.Context(group), name)
        assert command
        for option in command.params:
            if isinstance(option, click.Option):
                yield from ((name, spelled) for spelled in (*option.opts, *option.secondary_opts))


@pytest.mark.docs
def test_every_command_and_option_is_on_the_page_of_commands(site: dict[str, Page]) -> None:
    page = site["reference/commands.html"]
    anchors = {
        f"{name} {option}": f"cmdoption-stripectl-{name}-{option.lstrip('-')}" for name, option in every_option()
    }
    assert len(anchors) > 150 and not [option for option, anchor in anchors.items() if anchor not in page.anchors]
    assert {f"command-{name}" for name in COMMANDS} <= page.anchors


@pytest.mark.docs
def test_every_exit_code_is_on_its_page(site: dict[str, Page]) -> None:
    text = " ".join(" ".join(site["reference/exit-codes-and-limits.html"].text).split())
    codes = {0, 4, 130, StripectlError.exit_code, *(each.exit_code for each in StripectlError.__subclasses__())}
    table = text.partition("Exit codes ")[2].partition("Limits")[0]
    assert all(re.search(rf" {code} [A-Z]", table) for code in codes)


@pytest.mark.docs
def test_links_and_anchors_resolve(site: dict[str, Page]) -> None:
    broken = []
    for name, page in site.items():
        for link in page.links | page.loaded:
            if re.match(r"[a-z]+:", link):
                continue
            target, _, fragment = link.partition("#")
            file = (Path("/") / name).parent.joinpath(target).resolve().relative_to("/").as_posix() if target else name
            if file.endswith(".html") and (file not in site or (fragment and fragment not in site[file].anchors)):
                broken.append(f"{name}: {link}")
    assert not broken


@pytest.mark.docs
def test_no_page_loads_anything_from_elsewhere(site: dict[str, Page]) -> None:
    assert not {each for page in site.values() for each in page.loaded if "//" in each}


def test_pictures_are_as_the_code_draws_them() -> None:
    done = subprocess.run([sys.executable, "docs/pictures.py", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_prose_follows_the_rule() -> None:
    done = subprocess.run([sys.executable, "tools/prose.py"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_the_version_is_written_in_one_place() -> None:
    version = re.search(r'^version = "(.*)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert version
    files = [*(ROOT / "stripectl").rglob("*.py"), ROOT / "docs/conf.py", ROOT / "CITATION.cff"]
    assert not [path for path in files if re.search(rf'version.*["\s]{re.escape(version[1])}\b', path.read_text())]
