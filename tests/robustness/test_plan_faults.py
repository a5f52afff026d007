"""Plans whose programs hang, end their process, eat its memory or break its pipes, benched between two that do not.

Each is a scheme in a file, as anybody's plug-in may be; workers find the folder by a `sitecustomize` of their own.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import stripectl.schemes
from stripectl.core.plan import parse_plan
from stripectl.core.scheme import schemes
from stripectl.measure.sampler import SamplingOptions
from stripectl.results.backend import finals
from stripectl.results.environment import cores
from stripectl.results.measurement import Measurement
from stripectl.runner.bench import bench
from stripectl.util.progress import quiet
from stripectl.workers.process import Process
from stripectl.workers.stderr_tail import StderrTail
from stripectl.workers.worker_group import WorkerError, WorkerGroup
from tests.support.factories import request_of
from tests.support.processes import alive, children, wait_for

pytestmark = [
    pytest.mark.faults,
    pytest.mark.skipif(len(cores()) < 2, reason="a ring of pinned processes needs two cores"),
]

LIMIT_S = 20.0
SAMPLES = 3
MEMORY = Path("/sys/fs/cgroup/memory")
SCHEME = '''"""{name}: a ring whose program {does}."""

import ctypes, fcntl, os, resource, signal, stat, subprocess, sys, time

import jax
import jax.numpy as jnp

from stripectl.core.scheme import Scheme
from stripectl.schemes.ring import forward as ring

counted = 0


def pipes():
    """Those that this process writes to, but for its standard error."""
    for number in map(int, os.listdir("/proc/self/fd")):
        try:
            if number > 2 and stat.S_ISFIFO(os.fstat(number).st_mode) and fcntl.fcntl(number, fcntl.F_GETFL) & 1:
                yield number
        except OSError:
            pass


def traced():
    {traced}


def ran():
    global counted
    counted += 1
    {ran}


def forward(q, kv, attend, comm):
    if isinstance(q, jax.core.Tracer):
        traced()
        jax.debug.callback(ran)
    return ring(q, kv, attend, comm)


scheme = Scheme("{name}", paper="https://nowhere.example/", axes=("ring",), forward=forward)
'''
TRACED = {  # what each does while it is traced, and what is said of it
    "sleeps": ("time.sleep(10**6)", f"took longer than its limit of {LIMIT_S:g} s. Try a longer --compile-timeout"),
    "aborts": ("jax.process_index() or os.abort()", "process 0 was killed by SIGABRT"),
    "ends": ("sys.exit('it had enough')", "exited with code 1: it had enough"),
    "raises": ("raise ZeroDivisionError('by nothing')", "ZeroDivisionError: by nothing"),
    "recurses": ("traced()", "RecursionError"),
    "eats_memory": (
        "resource.setrlimit(resource.RLIMIT_AS, (2**36, 2**36)); hoard = [bytes(2**33) for _ in range(9)]",
        "MemoryError",
    ),
    "asks_for_too_much": ("with jax.ensure_compile_time_eval(): jnp.ones(2**44)", "RESOURCE_EXHAUSTED"),
    "writes_rubbish": (
        "[os.write(pipe, b'rubbish\\n') for pipe in pipes()]",
        "something other than an answer: 'rubbish'",
    ),
}
RAN = {  # and while it runs
    "sleeps_running": ("time.sleep(10**6)", "took longer than its limit"),
    "raises_running": ("raise ZeroDivisionError('by nothing')", "by nothing"),
    "aborts_later": ("counted == 4 and os.abort()", "was killed by SIGABRT"),
    "sleeps_later": ("counted == 5 and time.sleep(10**6)", "took longer than its limit"),
}
BAD = TRACED | RAN
FLOODS = "for _ in range(300): sys.stderr.write('x' * 2**16)"  # and goes on
KILLED = (  # by Linux, as a process that has taken all the memory there is
    "os.makedirs(group := '{group}', exist_ok=True); open(group + '/memory.limit_in_bytes', 'w').write(str(2**28)); "
    "open(group + '/cgroup.procs', 'w').write(str(os.getpid())); hoard = [b'.' * 2**24 for _ in range(2**20)]"
)


def can_limit_memory() -> bool:
    probe = MEMORY / f"stripectl-probe-{os.getpid()}"
    try:
        probe.mkdir()
        probe.rmdir()
    except OSError:
        return False
    return True


@pytest.fixture
def found(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Measurement]]:
    """What a bench finds of all of them, by scheme; beside one that floods its standard error and goes on."""
    folder, group = tmp_path_factory.mktemp("plug-ins"), MEMORY / f"stripectl-test-{os.getpid()}"
    traced = {name: does for name, (does, _) in TRACED.items()} | {"floods": FLOODS}
    traced |= {"is_killed": KILLED.format(group=group)} if can_limit_memory() else {}
    ran = {name: does for name, (does, _) in RAN.items()}
    (folder / "schemes").mkdir()
    for name in traced | ran:
        text = SCHEME.format(name=name, does="misbehaves", traced=traced.get(name, "pass"), ran=ran.get(name, "pass"))
        (folder / "schemes" / f"{name}.py").write_text(text)
    path = str(folder / "schemes")
    (folder / "sitecustomize.py").write_text(f"import stripectl.schemes\nstripectl.schemes.__path__.append({path!r})\n")
    plans = [f"{name}/striped/xla" for name in ("ring", *traced, *ran)] + ["ring/zigzag/xla"]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(stripectl.schemes, "__path__", [*stripectl.schemes.__path__, path])
        roots = (folder, Path(stripectl.__file__).parent.parent, os.environ.get("PYTHONPATH"))
        patched.setenv("PYTHONPATH", os.pathsep.join(map(str, filter(None, roots))))
        patched.setattr("stripectl.measure.sampler.MIN_SAMPLE_TIMEOUT_S", LIMIT_S)
        effort = SamplingOptions(budget_s=60, min_samples=SAMPLES, compile_timeout_s=LIMIT_S)
        asked = request_of(plans=list(map(parse_plan, plans)), sampling=effort, baseline=False)
        yield {str(m.plan).split("/xla")[0]: m for m in finals(bench(asked, quiet))}
    for name in traced | ran:
        schemes._cache.pop(name, None)
        sys.modules.pop(f"stripectl.schemes.{name}", None)
        if hasattr(stripectl.schemes, name):
            delattr(stripectl.schemes, name)
    parse_plan.cache_clear()
    if group.exists():
        group.rmdir()


def test_each_costs_itself_and_says_why_and_the_others_keep_their_samples(found: dict[str, Measurement]) -> None:
    for name in ("ring/striped", "ring/zigzag", "floods/striped"):
        m = found[name]
        assert m.status == "ok", m.reason
        assert len(m.samples_s) >= SAMPLES and m.check
    assert not children(os.getpid())
    by_linux = "was killed by SIGKILL: by Linux because memory ran out, or by a user"
    reasons = {name: why for name, (_, why) in BAD.items()} | ({"is_killed": by_linux} if can_limit_memory() else {})
    for name, why in reasons.items():
        m = found[f"{name}/striped"]
        assert m.status == "failed" and m.median_s is None, name
        assert why in str(m.reason), name
        assert len(str(m.reason)) < 800, name


ENDINGS = {
    "import os; os._exit(7)": "exited with code 7",
    "import sys; sys.exit('it had enough')": "exited with code 1: it had enough",
    "import ctypes; ctypes.string_at(0)": "was killed by SIGSEGV",
    f"import os; os.kill(os.getpid(), {signal.SIGRTMIN + 1})": f"was killed by signal {signal.SIGRTMIN + 1}",
    "import os, time; os.close(1); time.sleep(600)": "closed its pipe but did not exit",
    "import subprocess, sys; subprocess.Popen(['sleep', '5']); sys.exit('bye')": "exited with code 1: bye",
    "import sys; sys.stderr.write('x' * 2**24 + chr(10) + 'the end'); sys.exit(3)": "exited with code 3: the end",
}


def python(code: str) -> Process:
    """A worker that runs this in place of its own program."""
    pipe = subprocess.PIPE
    started = subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe, stderr=pipe)
    assert started.stderr
    return Process(started, StderrTail(started.stderr), bytearray())


@pytest.mark.parametrize("code", ENDINGS)
def test_how_a_process_ended_is_said(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stripectl.workers.process.END_S", 2.0)
    process = python(code)
    assert process.end() == ENDINGS[code]
    process.stop()


ANSWERS = {
    "out('rubbish' + end)": "process 0 wrote something other than an answer: 'rubbish'",
    "out(bytes(range(128, 256)) + end.encode())": "wrote something other than an answer",
    "out('[' * 10**5 + end)": "wrote something other than an answer",
    "out('[]' + end)": "wrote something other than an answer: '[]'",
    """out('{"result": 1}' + end)""": "wrote something other than an answer",
    """out('{"result": 1, "to": 0}' + end)""": "wrote something other than an answer",
    """out('{"result": 1, "to": 1}' + end + 'more' + end)""": "wrote something other than an answer",
    """out('{"to": 1}' + end)""": "wrote something other than an answer",
    """out('{"result": 1, "to": 1')""": "process 0 exited with code 0",
    "out('x' * 2**21); time.sleep(600)": "wrote something other than an answer: 'xxx",
    "[(out('.'), time.sleep(0.05)) for _ in range(10**6)]": "took longer than its limit of 1 s",
    "time.sleep(600)": "took longer than its limit of 1 s",
    "os.kill(os.getpid(), signal.SIGSTOP)": "took longer than its limit of 1 s",
    "sys.stdin.close(); os.close(1); time.sleep(600)": "process 0 closed its pipe but did not exit",
}
ANSWERING = """
import os, signal, sys, time
end = chr(10)
def out(text):
    sys.stdout.buffer.write(text if isinstance(text, bytes) else text.encode())
    sys.stdout.buffer.flush()
sys.stdin.readline()
{does}
"""


@pytest.mark.parametrize("does", ANSWERS)
def test_whatever_comes_in_place_of_an_answer_is_a_failure(does: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stripectl.workers.process.END_S", 1.0)
    monkeypatch.setattr("stripectl.workers.worker_group.MAX_ANSWER_BYTES", 2**20)
    worker = python(ANSWERING.format(does=does))
    devices = WorkerGroup(1, workers=[worker])
    limit_s = 1.0 if "1 s" in ANSWERS[does] else 60.0
    with devices, pytest.raises(WorkerError) as failure:
        devices.ask("anything", limit_s)
    assert ANSWERS[does] in str(failure.value) and not failure.value.group_alive
    assert devices.workers == [] and not alive(worker.process.pid)


def test_a_process_that_cannot_be_started_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with WorkerGroup(1) as devices, pytest.raises(WorkerError, match="no process could be started: No such file"):
        devices.ask("devices")


WORKER = """
import ctypes, os, signal, sys, time
from stripectl.workers.process import WorkerConfig
from stripectl.workers.worker import serve


class Session:
    def sleeps(self): time.sleep(10**6)
    def keeps_the_interpreter(self): ctypes.PyDLL(None).sleep(10**6)
    def stops(self): os.kill(os.getpid(), signal.SIGSTOP)
    def spins(self):
        while True: pass


session = Session()
names = ("sleeps", "keeps_the_interpreter", "stops", "spins")
serve(WorkerConfig("probe", 1, 0, ""), lambda: {name: getattr(session, name) for name in names})
"""
PARENT = """
import subprocess, sys, time
config = '{"core": null, "processes": 1, "session": "faulty"}'
worker = subprocess.Popen([sys.executable, "-c", sys.argv[1], config], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
print(worker.pid, flush=True)
worker.stdin.write(b'{"do": "%s", "with": {}, "number": 1}\\n' % sys.argv[2].encode())
worker.stdin.flush()
time.sleep(600)
"""


@pytest.mark.parametrize("does", ["sleeps", "keeps_the_interpreter", "stops", "spins"])
def test_a_worker_goes_with_its_parent_whatever_it_does(does: str) -> None:
    command = [sys.executable, "-c", PARENT, WORKER, does]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout
        worker = int(parent.stdout.readline())
        assert wait_for(lambda: busy(worker, does))
        parent.kill()
    assert wait_for(lambda: not alive(worker), 10)


def busy(pid: int, does: str) -> bool:
    """Whether a worker has imported JAX and is at it."""
    state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return state == "T" if does == "stops" else "jaxlib" in Path(f"/proc/{pid}/maps").read_text()
