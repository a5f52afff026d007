"""Start-up stays light, imports run down, and what adds a plug-in is one file."""

import ast
import json
import re
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest

import stripectl
import stripectl.compat as compat
from stripectl.core.kernel import kernels
from stripectl.results.history import History
from tests.support.factories import noisy_ring, run_of

PACKAGE = Path(stripectl.__file__).parent
MAY_IMPORT_JAX = {"compat", "compile", "execute", "measure", "profiling", "training", "workers"}


@cache
def modules() -> dict[str, ast.Module]:
    return {
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): ast.parse(
            path.read_text()
        )
        for path in PACKAGE.rglob("*.py")
    }


@cache
def imports(tree: ast.AST) -> frozenset[str]:
    names = set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return frozenset(names)


def test_jax_is_imported_only_where_devices_are_touched() -> None:
    found = {name for name, tree in modules().items() if any(each.split(".")[0] == "jax" for each in imports(tree))}
    kernels = {name for name in found if re.fullmatch(r"stripectl\.kernels\.\w+\.\w+", name)}
    assert kernels and {name.split(".")[1] for name in found - kernels} == MAY_IMPORT_JAX


PATCHED = re.compile(r"""setattr\(\s*f?"(stripectl\.[\w.]+)\"""")


def test_names_that_tests_replace_exist() -> None:
    """Slow tests too, so that a module which moved is found at once."""
    named = {name for path in Path(__file__).parent.rglob("*.py") for name in PATCHED.findall(path.read_text())}
    assert named and not {name for name in named if not exists(name)}


def exists(name: str) -> bool:
    """Whether a module of the package binds the name at its top, or lies there itself."""
    module = max((known for known in modules() if f"{name}.".startswith(f"{known}.")), key=len)
    rest = name.removeprefix(module).strip(".")
    bound = {node.id for node in ast.walk(modules()[module]) if isinstance(node, ast.Name)}
    defined = {node.name for node in modules()[module].body if isinstance(node, ast.ClassDef | ast.FunctionDef)}
    imported = {known.split(".")[-1] for known in imports(modules()[module])}
    return not rest or rest.split(".")[0] in bound | defined | imported


PRIVATE = re.compile(r"(jax|tokamax)\._src|\blibrary\._[a-z]")


def test_private_names_are_looked_up_in_one_module() -> None:
    found = {path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py") if PRIVATE.search(path.read_text())}
    assert found == {"compat.py"}


@pytest.mark.parametrize("part", compat.PROBES)
def test_this_installation_has_the_private_names_that_are_used(part: str) -> None:
    """A kernel of a library that is not installed here says so."""
    kind, _, name = part.partition(" ")
    missing = kernels[name].why_missing() if kind == "kernel" else None
    assert compat.probe_jax().parts[part] == (str(missing) if missing else None)


# From top to bottom: a folder imports only those that stand below it. Those in a row do not import each other.
FOLDERS = (
    ("api",),
    ("cli",),
    ("reporters",),
    ("runner",),
    ("analysis",),
    ("export",),
    ("measure",),
    ("compile",),
    ("simulate",),
    ("profiling",),
    ("workers",),
    ("training",),
    ("execute",),
    ("costs",),
    ("hlo",),
    ("results",),
    ("hardware",),
    ("models",),
    ("schemes", "layouts", "kernels", "layers"),
    ("core",),
    ("statistics",),
    ("util",),
    ("compat",),
    ("errors",),
)
ROOT = {"stripectl", "stripectl.__main__", "stripectl.api", "stripectl.compat", "stripectl.errors"}


def test_a_folder_imports_only_those_below_it() -> None:
    floor = {name: at for at, names in enumerate(FOLDERS) for name in names}
    known = modules()
    upward = set()
    for module, tree in known.items():
        if module in ("stripectl", "stripectl.__main__"):
            continue
        own = module.split(".")[1]
        if "stripectl" in imports(tree):
            upward.add(f"{module} imports the package's face")
        for other in imports(tree) & known.keys() - {"stripectl"}:
            theirs = other.split(".")[1]
            if theirs != own and floor[theirs] <= floor[own]:
                upward.add(f"{module} imports {other}: {theirs} does not stand below {own}")
    assert not upward


def test_no_reporter_imports_another() -> None:
    """A report, a terminal and a comment on a pull request draw the same data, each in its own way."""
    reporters = ("html", "terminal", "markdown_report", "ci")
    crossing = [
        f"{module} imports {other}"
        for module, tree in modules().items()
        for other in imports(tree) & modules().keys()
        for mine in reporters
        for theirs in reporters
        if mine != theirs
        if module.startswith(f"stripectl.reporters.{mine}") and other.startswith(f"stripectl.reporters.{theirs}")
    ]
    assert not crossing


def test_every_module_lies_in_a_folder_of_the_list() -> None:
    folders = {name for names in FOLDERS for name in names}
    assert {name for name in modules() if name not in ROOT and name.split(".")[1] not in folders} == set()


def test_no_test_imports_from_a_test() -> None:
    """What several of them need lies in tests/support; a script in a string is no exception."""
    borrows = re.compile(r"^\s*(from|import) tests\.([\w.]+\.)?test_", re.MULTILINE)
    tests = Path(__file__).parent
    assert [
        str(path.relative_to(tests)) for path in sorted(tests.rglob("*.py")) if borrows.search(path.read_text())
    ] == []


def test_there_is_no_import_cycle() -> None:
    known = modules()
    graph = {name: imports(tree) & known.keys() - {name} for name, tree in known.items()}
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, f"cycle: {' -> '.join([*path, name])}"
        if name not in done:
            for other in graph[name]:
                visit(other, (*path, name))
            done.add(name)

    for name in graph:
        visit(name, ())


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stored")
    run = run_of(noisy_ring("striped", 1.0))
    run.save(folder)
    History(folder).add(run)
    (folder / "claims.yaml").write_text("claims: [striped time < 2 s]")
    return folder


ON_PAPER = ["--target", "v5p:8", "--method", "simulated", "--seqlen", "8k", "--quiet", "--output", "{new}"]
COMMANDS = {
    "help": ["--help"],
    "bench help": ["bench", "--help"],
    "list": ["list"],
    "doctor": ["doctor", "--json"],
    "report": ["report", "{stored}", "--no-open"],
    "compare": ["compare", "{stored}", "{stored}"],
    "check": ["check", "{stored}/claims.yaml", "{stored}"],
    "history": ["history", "{stored}"],
    "report of a history": ["report", "{stored}", "--history", "{stored}", "--no-open"],
    "topology of a target": ["topology", "--target", "v5p:2x2x4"],
    "simulated bench": ["bench", *ON_PAPER],
    "simulated tune-tiles": ["tune-tiles", "--no-cache", "--layout", "striped", "--tile", "128,256", *ON_PAPER],
    "dry run": ["bench", "--target", "v5p:8", "--seqlen", "8k", "--dry-run", "--quiet"],
}
PROBE = """
import json, sys
from stripectl.cli import main
for name, arguments in json.loads(sys.argv[1]).items():
    try:
        main(arguments)
    except SystemExit as done:
        assert not done.code, f"{name}: {done.code}"
    heavy = {"jax", "grpc"} & set(sys.modules)
    assert not heavy, f"{name} imports {heavy}"
"""


def probed(commands: Mapping[str, list[str]], folder: Path, probe: str = PROBE) -> subprocess.CompletedProcess[str]:
    """The commands, one after another in a process: the first that imports too much is named."""
    asked = [sys.executable, "-c", probe, json.dumps(commands)]
    return subprocess.run(asked, capture_output=True, text=True, cwd=folder)


def test_the_parent_imports_neither_jax_nor_on_one_host_grpc(stored: Path, tmp_path: Path) -> None:
    commands = {
        name: [each.format(stored=stored, new=tmp_path / name) for each in arguments]
        for name, arguments in COMMANDS.items()
    }
    done = probed(commands, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_recommendation_runs_nothing() -> None:
    heavy = {"jax", "stripectl.simulate.simulation"}
    code = f"import sys, stripectl.analysis.recommendation; sys.exit(' '.join({heavy} & set(sys.modules)) or None)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_probe_can_fail(tmp_path: Path) -> None:
    done = probed({"help": ["--help"]}, tmp_path, f"import jax\n{PROBE}")
    assert done.returncode == 1 and "help imports {'jax'}" in done.stderr


def test_help_imports_nothing_heavy(tmp_path: Path) -> None:
    code = PROBE.replace('{"jax", "grpc"}', '{"numpy", "rich", "yaml", "jinja2", "scipy"}')
    done = probed({"help": ["--help"]}, tmp_path, code)
    assert done.returncode == 0, done.stderr


def test_the_library_imports_jax_when_it_is_used() -> None:
    code = (
        "import sys, stripectl; assert 'jax' not in sys.modules\n"
        "from stripectl import positions, sequence_parallel_attention\n"
        "assert 'jax' in sys.modules and not hasattr(stripectl, 'no_such_name')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_plug_in_that_breaks_is_listed_with_its_reason(monkeypatch, capsys) -> None:
    from stripectl.cli import list
    from stripectl.util.catalogue import Catalogue

    real = Catalogue.own_names
    monkeypatch.setattr(Catalogue, "own_names", lambda self: (*real(self), "no_such_file"))
    list.command.main(["schemes"], standalone_mode=False)
    shown = capsys.readouterr().out
    assert "no_such_file cannot be loaded: ModuleNotFoundError" in " ".join(shown.split())
    assert "ring " in shown
