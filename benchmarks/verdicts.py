"""How often `stripectl compare` is wrong on this machine, by the real commands: a plan against itself, and against
itself with a planted slowdown.

    python benchmarks/verdicts.py --same 30 --planted 15 --record benchmarks/verdicts.json

A slowdown is planted in a copy of the package: after every timed run its worker goes on for a share of the time that
it took. Runs follow each other, as those of commits do in CI, and each is compared with the last one before it that has
no slowdown, plan by plan.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import stripectl

PLANS = [
    "--target",
    "cpu:2",
    "--seqlen",
    "2k",
    "--heads",
    "1",
    "--head-dim",
    "64",
    "--tile",
    "128,256",
    "--pass",
    "forward",
]
BENCH = ["bench", "--method", "measured", *PLANS, "--min-samples", "300", "--time-budget", "2m", "--quiet"]
TIMED = "    jax.block_until_ready(function(*inputs))\n"
PLANTED = "    while time.perf_counter() - start < {share} * (done - start):\n        pass\n"


def slowed(folder: Path, share: float) -> Path:
    """A copy of the package whose workers take so much longer."""
    shutil.copytree(Path(stripectl.__file__).parent, folder / "stripectl")
    for name in ("profiles", "templates"):
        source = Path(stripectl.__file__).parent
        shutil.copytree(source / name if (source / name).is_dir() else source.parent / name, folder / name)
    measure = folder / "stripectl" / "measure" / "__init__.py"
    text = measure.read_text()
    assert text.count(TIMED) == 1
    planted = f"{TIMED}    done = time.perf_counter()\n{PLANTED.format(share=1 + share)}"
    measure.write_text(text.replace(TIMED, planted))
    return folder


def command(*words: str, package: Path, cache: Path) -> subprocess.CompletedProcess:
    around = os.environ | {
        "PYTHONPATH": str(package),
        "JAX_COMPILATION_CACHE_DIR": str(cache),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    return subprocess.run(
        [sys.executable, "-m", "stripectl", *words], env=around, cwd=package, capture_output=True, text=True
    )


def benched(folder: Path, package: Path, cache: Path) -> Path:
    """A run of the package, in a folder of its own, where that does not hold one."""
    if (folder / "report.html").exists():
        return folder
    made = command(*BENCH, "--output", str(folder), package=package, cache=cache)
    assert made.returncode == 0, made.stderr
    return folder


def compared(base: Path, new: Path, package: Path, cache: Path) -> list[tuple[str, str]]:
    """(verdict, medians, change and why) of every plan of two runs."""
    junit = new / "compare.xml"
    command("compare", str(base), str(new), "--junit", str(junit), package=package, cache=cache)
    texts = ["".join(case.itertext()).strip() for case in ElementTree.parse(junit).iter("testcase")]
    return [(verdict, said) for verdict, _, said in (text.partition(": ") for text in texts)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--same", type=int, default=30, help="runs without a slowdown, after the first")
    parser.add_argument("--planted", type=int, default=15, help="runs with one")
    parser.add_argument("--share", type=float, default=0.10, help="of the slowdown")
    parser.add_argument("--record", type=Path, help="file for the verdicts")
    parser.add_argument("--keep", type=Path, help="folder for the runs; those that it has are not run again")
    given = parser.parse_args()
    found: dict[str, list[tuple[str, str]]] = {"same": [], "planted": []}
    with tempfile.TemporaryDirectory() as scratch:
        kept, cache = given.keep or Path(scratch) / "runs", Path(scratch) / "cache"
        here = Path(stripectl.__file__).parent.parent
        other = slowed(Path(scratch) / "slowed", given.share)
        count = given.same + given.planted
        base = benched(kept / "first", here, cache)
        for number in range(count):
            kind = "planted" if (number + 1) * given.planted // count > number * given.planted // count else "same"
            new = benched(kept / f"{number}-{kind}", other if kind == "planted" else here, cache)
            found[kind] += compared(base, new, here, cache)
            base = new if kind == "same" else base
            counts = {kind: dict(Counter(verdict for verdict, _ in each)) for kind, each in found.items()}
            print(time.strftime("%H:%M:%S"), f"{number + 1}/{count}", counts, flush=True)
    if given.record:
        given.record.write_text(json.dumps({"bench": BENCH, "share": given.share, **found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
