"""A package of somebody else adds a scheme, a kernel and a machine by its entry points, with no change of stripectl."""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "plug-in"


def run(*words: str, path: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """A command of stripectl in a process that finds the packages in `path`."""
    paths = os.pathsep.join([str(path), *filter(None, [os.environ.get("PYTHONPATH", "")])])
    command = [sys.executable, "-m", "stripectl", *words]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, env=os.environ | {"PYTHONPATH": paths})


def installed(folder: Path, **more: dict[str, str]) -> Path:
    """A folder with the example's modules and the entry points that pip would write, and `more` of them by part."""
    shutil.copytree(EXAMPLE / "nowhere_attention", folder / "nowhere_attention")
    about = folder / "nowhere_attention-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: nowhere-attention\nVersion: 1.0\n")
    parts = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]["entry-points"]
    for part, names in more.items():
        parts.setdefault(f"stripectl.{part}", {}).update(names)
    lines = [f"[{part}]\n" + "".join(f"{name} = {to}\n" for name, to in names.items()) for part, names in parts.items()]
    (about / "entry_points.txt").write_text("\n".join(lines))
    return folder


def test_parts_of_a_package_are_listed_with_the_package(tmp_path: Path) -> None:
    """A part that cannot be imported has its reason and breaks no other; a name of stripectl stays its own."""
    more = {"schemes": {"absent": "no_such_package", "ring": "nowhere_attention.backward_ring"}}
    path = installed(tmp_path / "site", **more)
    listed = run("list", path=path, folder=tmp_path)
    assert listed.returncode == 0, listed.stderr
    words = " ".join(listed.stdout.split())
    assert "backward_ring a ring whose keys and values go one place back (an example of a scheme)." in words
    assert "small_tiles the loop of xla with small default tiles" in words
    assert "nowhere1 gpu: 989 TFLOP/s bfloat16" in words and "tables of h100 (from nowhere-attention 1.0)" in words
    assert words.count("(from nowhere-attention 1.0)") == 3
    assert "absent cannot be loaded: ModuleNotFoundError: No module named 'no_such_package'" in words


def test_a_run_takes_a_scheme_a_kernel_and_a_machine(tmp_path: Path) -> None:
    path = installed(tmp_path / "site")
    plan = ["--plan", "backward_ring/zigzag/small_tiles@ring=8", "--target", "nowhere1:8", "--seqlen", "64k"]
    done = run("bench", *plan, "--pass", "forward", "--method", "simulated", "--quiet", path=path, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "backward_ring/zigzag/small_tiles@ring=8,tile=" in done.stdout
    assert "profiles/kernels/h100.yaml" in done.stdout


HELPER = """
def of_the_helper(kv):
    return kv.no_such_attribute
"""


@pytest.mark.parametrize(
    ("method", "target", "said"),
    [
        ("simulated", "v5p:2x2x1", "counting the tiles of this scheme failed: AttributeError"),
        pytest.param("measured", "cpu:2", "AttributeError", marks=pytest.mark.faults),
        pytest.param("compiled", "v5e:2x2", "AttributeError", marks=pytest.mark.compilers),
    ],
)
def test_an_error_in_a_helper_is_shown_with_its_file_and_line(
    method: str, target: str, said: str, tmp_path: Path
) -> None:
    """And with --verbose the whole traceback, of workers too; only in the program, where the tiles can be counted."""
    path = installed(tmp_path / "site")
    scheme, helper = path / "nowhere_attention" / "backward_ring.py", path / "nowhere_attention" / "helper.py"
    helper.write_text(HELPER)
    condition = "" if method == "simulated" else 'if type(q).__module__.startswith("jax"): '
    text = scheme.read_text().replace("    for hop", f"    {condition}of_the_helper(q)\n    for hop", 1)
    scheme.write_text("from nowhere_attention.helper import of_the_helper\n" + text)
    devices = "2" if target == "cpu:2" else "4"
    words = ["--plan", f"backward_ring/zigzag/xla@ring={devices}", "--target", target, "--method", method]
    small = ["--seqlen", "2k", "--heads", "2", "--head-dim", "64", "--pass", "forward", "--quiet"]
    done = run("bench", *words, *small, path=path, folder=tmp_path)
    assert said in done.stdout and "at nowhere_attention/helper.py:3" in done.stdout, done
    assert "Traceback" not in done.stdout + done.stderr
    again = ["--verbose", *(["--no-cache"] if method == "compiled" else [])]
    shown = run("bench", *words, *small, *again, path=path, folder=tmp_path)
    assert "helper.py" in shown.stderr and "return kv.no_such_attribute" in shown.stderr, shown.stderr


@pytest.mark.docs
def test_pip_installs_the_example_and_it_is_measured(tmp_path: Path) -> None:
    source, path = shutil.copytree(EXAMPLE, tmp_path / "source"), tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*pip, "--target", str(path), str(source)], check=True)
    plan = ["--plan", "backward_ring/zigzag/small_tiles@ring=2", "--target", "cpu:2", "--seqlen", "2k"]
    size = ["--heads", "2", "--head-dim", "16", "--method", "measured", "--quiet"]
    done = run("bench", *plan, *size, path=path, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "measured" in done.stdout and "backward_ring/zigzag/small_tiles@ring=2,tile=64x64" in done.stdout
