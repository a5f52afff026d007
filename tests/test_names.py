"""Names of the package: one name has one meaning, and a limit says what it limits."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "stripectl"

# Spelled alike because they play the same part: in schemes, kernels, families of models, integrations,
# commands, or workers.
PARTS_PLAYED = {
    "Session",
    "attend",
    "backward",
    "backward_kv",
    "backward_q",
    "bench",
    "command",
    "differentiate",
    "document_lookup",
    "enter",
    "forward",
    "gradients",
    "keys_at_once",
    "leave",
    "map_of",
    "of_run",
    "outputs",
    "read",
    "scaled_queries",
    "score_bytes",
    "settings",
    "transposed_map_of",
    "vmem_bytes",
    "why_unsupported",
    "write",
}


def top_level() -> Iterator[tuple[str, ast.stmt]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            yield str(path.relative_to(PACKAGE)), node


def test_no_two_public_functions_or_classes_are_spelled_alike() -> None:
    found = defaultdict(set)
    for path, node in top_level():
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            found[node.name].add(path)
    several = {name: paths for name, paths in found.items() if len(paths) > 1}
    assert {name: paths for name, paths in several.items() if name not in PARTS_PLAYED} == {}
    assert several.keys() == PARTS_PLAYED


def test_limits_begin_with_min_or_max_and_say_of_what() -> None:
    names = {
        name.id
        for _, node in top_level()
        if isinstance(node, ast.Assign)
        for target in node.targets
        for name in ast.walk(target)
        if isinstance(name, ast.Name)
    }
    assert {name for name in names if name.partition("_")[0] in ("LEAST", "MOST", "FEWEST", "LONGEST")} == set()
    assert {name for name in names if name in ("MIN", "MAX")} == set()
