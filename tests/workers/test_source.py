"""No message chooses code: the syntax trees of `workers` and of the worker's program hold nothing that could."""

import ast
from pathlib import Path

import pytest

import stripectl

PACKAGE = Path(stripectl.__file__).parent
FILES = [*sorted((PACKAGE / "workers").glob("*.py")), PACKAGE / "cli" / "worker.py"]
LOOKUPS = {"getattr", "eval", "exec", "__import__", "import_module", "find_spec", "globals", "vars"}
MODULES = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "importlib", "struct", "socketserver"}
SOCKETS = {"create_server", "create_connection", "listen", "accept", "recv", "recv_into", "makefile"}


def names(tree: ast.AST) -> set[str]:
    """Every name and attribute, called or not."""
    plain = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    return plain | {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_no_message_chooses_code_and_no_socket_is_framed(file: Path) -> None:
    tree = ast.parse(file.read_text())
    imported = {
        each.name.split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.Import) for each in node.names
    }
    imported |= {str(node.module).split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not imported & MODULES
    assert not names(tree) & (LOOKUPS | SOCKETS)


def test_a_worker_starts_no_session_of_another_name() -> None:
    from stripectl.cli.worker import SESSIONS
    from stripectl.workers.process import Session

    assert set(SESSIONS) == set(Session.__args__)  # type: ignore[attr-defined]
