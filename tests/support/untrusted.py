"""What must hold of input that anybody may have written: a property a kind of input, for tests and fuzzers alike.

Whatever it is, a command ends in a result or in one line that says what is wrong, with the exit code for it; it starts
no program, connects to nothing, unpickles nothing, writes nowhere but where it was told to, and stays within
MEMORY_BYTES. A property raises where that does not hold.
"""

import contextlib
import io
import json
import os
import resource
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from stripectl.analysis.claims import parse_claim as parse_claim
from stripectl.analysis.plan_selector import parse_selector
from stripectl.cli import main
from stripectl.cli.compare import parse_percent
from stripectl.cli.trace import parse_axes
from stripectl.core.layout import parse_mask, parse_tile
from stripectl.core.lengths import parse_length, parse_lengths
from stripectl.core.linear_attention import parse_decay, pattern_of
from stripectl.core.mesh import parse_mesh
from stripectl.core.plan import parse_layers, parse_plan
from stripectl.errors import StripectlError
from stripectl.hardware.profile import Hardware
from stripectl.hardware.target import parse_target
from stripectl.models.model_files import load_model
from stripectl.profiling.folder import profile_files
from stripectl.profiling.session import Session
from stripectl.reporters.html.drawing import PROGRAM as DRAWER
from stripectl.reporters.terminal.profile import profile_parts
from stripectl.reporters.terminal.screen import console
from stripectl.results.journal import FILE as JOURNAL
from stripectl.results.journal import digest
from stripectl.results.lock import FILE as LOCK
from stripectl.results.profile import Profile
from stripectl.results.records import read_record
from stripectl.runner.names import parse_duration
from stripectl.runner.parse import parse_flags
from stripectl.runner.plan_options import parse_turns
from tests.support import hostile

MEMORY_BYTES = 2**30  # beyond what the process has
LONGEST_LINE = 620  # characters of what is said of bad input
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
CHANGES = ("os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.chmod", "os.truncate")
RUNS = ("os.system", "os.exec", "os.posix_spawn", "os.spawn", "pickle.find_class", "socket.connect", "webbrowser.open")
OWN_PROGRAMS = ("git", "uname")  # what `environment` asks
# For a machine that is not here, and with nothing compiled.
ON_PAPER = ("--target", "v5e:2x2", "--method", "simulated", "--quiet")
ALONE = (*ON_PAPER, "--num-processes", "1")
SMALL = (*ON_PAPER, "--pass", "forward", "--layout", "striped", "--seqlen", "4k")

_watching: list[tuple[list[str], list[str]]] = []  # (folders that may be written, what was seen) of those under way


class Answer(NamedTuple):
    """What a command line came to."""

    code: int
    out: str
    err: str


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if not _watching:
        return
    allowed, seen = _watching[-1]
    own = event == "subprocess.Popen" and (arguments[0] in OWN_PROGRAMS or str(DRAWER) in arguments[1])
    if event in RUNS or (event == "subprocess.Popen" and not own):
        seen.append(f"{event} {arguments}")
    elif event in CHANGES or (event == "open" and (arguments[2] or 0) & WRITES):
        paths = arguments[:2] if event in ("os.rename", "os.link") else arguments[:1]
        nameless = event == "open" and arguments[2] & os.O_TMPFILE == os.O_TMPFILE
        outside = [path for path in map(_real(event, arguments), paths) if path and not path.startswith((*allowed,))]
        seen += [f"{event} {path}" for path in outside if not nameless]


def _real(event: str, arguments: tuple[Any, ...]) -> Callable[[Any], str]:
    """Where a path lies: its folder resolved, and not a link at its end, which a file that is renamed replaces."""
    beside = arguments[1] if event in ("os.remove", "os.rmdir") else -1  # an open folder that it is relative to

    def real(path: Any) -> str:
        if isinstance(path, int):
            return ""
        folder, name = os.path.split(os.fsdecode(path))
        start = f"/proc/self/fd/{beside}" if beside != -1 else ""
        return os.path.join(os.path.realpath(os.path.join(start, folder)), name, "")

    return real


sys.addaudithook(_audit)


@contextlib.contextmanager
def watched(*folders: Path) -> Iterator[None]:
    """Nothing but what belongs to stripectl runs, writes outside these folders, or takes more than MEMORY_BYTES."""
    scratch = os.path.join(tempfile.gettempdir(), "stripectl-")
    allowed = [*(os.path.join(os.path.realpath(folder), "") for folder in folders), scratch, "/dev/null"]
    seen, bytecode, before = list[str](), sys.dont_write_bytecode, resource.getrlimit(resource.RLIMIT_DATA)
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    sys.dont_write_bytecode = True
    resource.setrlimit(resource.RLIMIT_DATA, (1024 * int(status["VmData"].split()[0]) + MEMORY_BYTES, before[1]))
    _watching.append((allowed, seen))
    try:
        yield
    finally:
        _watching.pop()
        resource.setrlimit(resource.RLIMIT_DATA, before)
        sys.dont_write_bytecode = bytecode
    assert not seen, seen


def asked(*words: str, folders: Sequence[Path] = ()) -> Answer:
    """What a command line comes to, run here and allowed to write in these folders; what is bad about it is a line."""
    out, err = (
        io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors=errors) for errors in ("strict", "backslashreplace")
    )
    code = None
    try:
        with watched(*folders), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main(list(words))
    except SystemExit as done:
        code = int(done.code or 0)
    out.flush(), err.flush()
    answer = Answer(code or 0, *(each.buffer.getvalue().decode() for each in (out, err)))  # type: ignore[attr-defined]
    assert code in (0, 1, 2, 3), answer
    if code in (2, 3) and not answer.out:
        check_line(answer.err)
    return answer


def check_line(said: str) -> None:
    """One line that says what is wrong, and perhaps one that says where help is."""
    first, *others = said.splitlines()
    assert first.startswith("error: ") and first.isprintable() and len(first) <= LONGEST_LINE, said[:2000]
    assert not others or (len(others) == 1 and others[0].startswith("Try: ")), said[:2000]


def refused(parse: Callable[..., Any], *given: Any) -> Any:
    """What the parser makes of it, or None where it says what is wrong."""
    try:
        return parse(*given)
    except StripectlError as error:
        assert error.exit_code in (2, 3) and str(error)
        return None


def strings(text: str) -> None:
    """Every grammar of the command line; a plan or a target that parses prints as what parses to the same."""
    with watched():
        plan, target = refused(parse_plan, text), refused(parse_target, text)
        if plan is not None:
            assert parse_plan(str(plan)) == plan and str(parse_plan(str(plan))) == str(plan)
            assert plan.devices >= 1 and plan.sequence_devices >= 1 and plan.sequence_scheme
        if target is not None:
            assert parse_target(str(target)) == target and target.devices >= target.hosts >= 1
        refused(partial(parse_layers, "softmax"), text)
        for parse in (parse_mesh, parse_tile, parse_axes, parse_length, parse_lengths, parse_mask):
            refused(parse, text)
        for parse in (parse_duration, parse_percent, parse_turns, pattern_of, parse_selector, parse_claim):
            refused(parse, text)
        refused(parse_decay, text, 4)
        refused(parse_flags, text.split("\n"))


def yaml_file(content: bytes, folder: Path) -> None:
    """A YAML file as hardware, as a model, as claims, and as a suite of options."""
    path = folder / "a.yaml"
    path.write_bytes(content)
    with watched():
        machine, model = refused(Hardware.load, str(path)), refused(load_model, str(path))
    if machine is not None:
        target = (
            "--target",
            {"cpu": "cpu:2", "gpu": "h100:8", "tpu": "v5e:2x2"}[machine.kind],
            "--hardware",
            str(path),
        )
        asked("topology", *target, "--json", "--quiet")
        asked("topology", *target, "--quiet")
        if machine.kind != "cpu":
            asked("bench", *SMALL, *target, "--dry-run")
    if model is not None:
        asked("topology", *ON_PAPER[:2], "--model", str(path), "--quiet")
        asked("bench", *SMALL, "--model", str(path), "--pass", "step", "--dry-run")
    asked("check", str(path), str(hostile.EXAMPLES[0]))
    asked("bench", str(path), *SMALL, "--dry-run")


def run_file(content: bytes, folder: Path, draws: bool = False) -> None:
    """A run.json, one that is packed, or a page that carries one: read by every command that reads runs. A page that is
    drawn of it, and a history that it is added to, hold it."""
    path, page = folder / "stripectl-runs" / "one" / "run.json", folder / "page.html"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    run = str(path)
    shown = asked("report", run, "--format", "json")
    if not shown.code:
        json.loads(shown.out)
    for words in (("report", run, "--format", "md"), ("report", run, run, "--format", "md")):
        assert asked(*words).code == shown.code, words
    asked("compare", run, run)
    asked("check", str(hostile.ROOT / "examples" / "claims.yaml"), run)
    if not asked("history", str(folder / "kept"), "--add", run, folders=[folder]).code:
        asked("history", str(folder / "kept"))
    with contextlib.chdir(folder):
        asked(
            "tune-tiles", *ON_PAPER, "--layout", "striped", "--tile", "512", "--dry-run"
        )  # takes the workload of the newest run
    if draws and not shown.code:
        assert not asked("report", run, "--no-open", "--quiet", "-o", str(page), folders=[folder]).code
        assert not asked("report", str(page), "--format", "md").code
        asked("bench", *SMALL, "--output", str(path.parent), "--resume", folders=[path.parent])


def run_folder(journal: bytes, lock: bytes, folder: Path, resumes: bool = False) -> None:
    """A run with the journal and the lock of somebody, read by commands and perhaps continued."""
    place = folder / "run"
    place.mkdir(exist_ok=True)
    content = json.dumps(hostile.run(Random(0), most=2)).encode()
    (place / "run.json").write_bytes(content)
    for name, theirs in ((JOURNAL, journal.replace(hostile.DIGEST.encode(), digest(content).encode())), (LOCK, lock)):
        if not os.path.lexists(place / name):
            (place / name).write_bytes(theirs)
    asked("report", str(place), "--format", "md")
    asked("compare", str(place), str(place))
    if resumes:
        asked("bench", *SMALL, "--output", str(place), "--resume", folders=[place])


def profile(content: bytes, program: str | None, axes: dict[str, int], folder: Path) -> None:
    """A profile with a program beside it or none, read as the worker does and shown as the command does."""
    place, scratch = folder / "profile", folder / "scratch"
    for each in (place, scratch):
        each.mkdir()
    (place / "a.xplane.pb").write_bytes(content)
    if program is not None:
        (place / "program.hlo.txt").write_text(program, encoding="utf-8", errors="replace")
    before = sorted(folder.rglob("*"))
    with scratch_in(scratch), watched(), contextlib.redirect_stdout(io.TextIOWrapper(io.BytesIO(), encoding="utf-8")):
        found = refused(Session().analyse, [str(each) for each in profile_files(place)], axes, {})
        if found is not None:
            profile = read_record(Profile, json.loads(json.dumps(found)))
            for part in profile_parts(profile, "a profile", 100):
                console().print(part)
    assert sorted(folder.rglob("*")) == before


def command_line(words: Sequence[str], folder: Path) -> None:
    """A command line, on paper. What was there stays as it was, and what is new lies where the command was told to put
    it: here, or in the folder beside."""
    beside, work, cache = (folder / name for name in ("beside", "work", "cache"))
    prepare(work, beside)
    every = [path for path in (*work.iterdir(), *beside.iterdir()) if path.is_file() and not path.is_symlink()]
    before = {path: path.read_bytes() for path in every}
    # as a program gets words: bytes without a zero, by the encoding of the file system
    name, *given = [os.fsdecode(word.replace("\0", "").encode("utf-8", "surrogatepass")) for word in words]
    given += {
        "bench": (*ALONE, "--seqlen", "4k") if sum(map(len, given)) % 16 == 0 else (*ALONE, "--dry-run"),
        "tune-tiles": (*ALONE, "--seqlen", "16k", "--dry-run"),
        "trace": (*ON_PAPER[:2], "--num-processes", "1", "--quiet"),
        "topology": (*ON_PAPER[:2], "--quiet"),
    }.get(name, ())
    with contextlib.chdir(work), variable("XDG_CACHE_HOME", str(cache)):
        asked(name, *given, folders=[work, beside, cache])
    assert {path: path.read_bytes() for path in every} == before


def prepare(work: Path, beside: Path) -> None:
    """A folder to work in, with inputs, links, and what is in the way, and one beside it."""
    for each in (work, beside):
        each.mkdir()
    (beside / "theirs.html").write_text("theirs")
    (work / "link").symlink_to(beside)
    (work / "link.html").symlink_to(beside / "theirs.html")
    (work / "a-file").write_text("")
    (work / "run.json").write_text(json.dumps(hostile.run(Random(0), most=2)))
    (work / "model.yaml").write_text((hostile.ROOT / "profiles/models/1b.yaml").read_text())
    (work / "hardware.yaml").write_text((hostile.ROOT / "profiles/hardware/v5e.yaml").read_text())
    (work / "claims.yaml").write_text("claims: [striped >= 1.3 x ring, tiles >= 80%]\n")
    (work / "suite.yaml").write_text("given: {pass: forward}\nruns: [{seqlen: 1k, layout: [striped, zigzag]}]\n")


@contextlib.contextmanager
def scratch_in(folder: Path) -> Iterator[None]:
    """With temporary files there, so that what is written beside them is seen whoever writes it."""
    before, tempfile.tempdir = tempfile.tempdir, str(folder)
    try:
        yield
    finally:
        tempfile.tempdir = before


@contextlib.contextmanager
def variable(name: str, value: str) -> Iterator[None]:
    """With this in the environment."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]
        if before is not None:
            os.environ[name] = before
