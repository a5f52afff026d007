"""How much communication hides behind compute, from an XLA profile: captured here, or anybody's.

capture (in the workers that run the program) -> events (a profile's columns) -> program (what its instructions are) ->
steps (one device's step) -> analysis (figures by device, hop and axis) -> cause (why a hop is exposed). Profiles are
read in a worker of their own, because reading a broken one may end the process.
"""

import base64
import hashlib
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType

from stripectl.core.workload import format_length
from stripectl.errors import BadInput
from stripectl.profiling.diagnosis import ProfiledPlan
from stripectl.profiling.folder import PROFILES, profile_files
from stripectl.results.environment import memory_bytes
from stripectl.results.measurement import Measurement
from stripectl.results.profile import Profile
from stripectl.results.records import read_record, record_json
from stripectl.util.units import nbytes
from stripectl.workers.worker_group import WorkerError, WorkerGroup

READ_TIMEOUT_S = 600.0
FOLDER = "profiles"  # in the folder of a run
UNPROFILED = "no profile"  # how the reason of a plan begins that was to be profiled and could not be
MAX_NAME_CHARACTERS = 180
OUT_OF_MEMORY = re.compile(r"MemoryError|bad_alloc")


@dataclass
class Tracer:
    """Captures and reads the profiles of a run. Use it with `with`."""

    folder: Path  # of the run
    steps: int = 3
    reader: WorkerGroup = field(
        default_factory=lambda: WorkerGroup(
            session="profiling.session", variables={"JAX_PLATFORMS": "cpu"}, memory_bytes=memory_bytes() // 2
        )
    )

    def __enter__(self) -> "Tracer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.reader.stop()

    def trace(self, devices: WorkerGroup, key: str, m: Measurement, limit_s: float, link: float | None) -> Measurement:
        """The measurement with what a profile of its prepared plan says; where none can be had, with the reason."""
        folder = self.folder.absolute() / FOLDER / profile_name(m)
        plan = m.plan
        told = ProfiledPlan(
            layout=plan.layout,
            mask=m.workload.mask,
            unroll=plan.unroll,
            turns=plan.shards - 1 if plan.scheme == "ring" else None,
            link_bytes_per_s=link,
        )
        try:
            self.capture(devices, key, folder, limit_s)
            found = self.read(profile_files(folder), plan.axes, told)
        except BadInput as error:
            return replace(m, profile=Profile(reason=f"{UNPROFILED}: {error}"))
        except (WorkerError, OSError) as failure:
            shutil.rmtree(folder, ignore_errors=True)  # what nobody has read, nobody should take for a whole one
            why = f"cannot write {folder}: {failure.strerror}" if isinstance(failure, OSError) else failure
            return replace(m, profile=Profile(reason=f"{UNPROFILED}: {why}"))
        except KeyboardInterrupt:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        overlap = found.overlap and replace(found.overlap, source=f"XLA profile, {found.steps} steps")
        place = str(folder.relative_to(self.folder.absolute()))
        return replace(m, profile=replace(found, profile=place, overlap=None), overlap=overlap)

    def capture(self, devices: WorkerGroup, key: str, folder: Path, limit_s: float) -> None:
        """A profile of a prepared plan in a folder: written there by the processes that see it, sent by the others."""
        shutil.rmtree(folder, ignore_errors=True)  # what is left of one that was killed
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".") as mark:
            asked = {"key": key, "steps": self.steps, "folder": str(folder), "mark": Path(mark.name).name}
            for sent in filter(None, devices.ask("profile", limit_s, **asked)):
                file = folder / PROFILES / Path(sent["name"]).name
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(base64.b64decode(sent["content"]))

    def read(self, files: Sequence[Path], axes: Mapping[str, int], told: ProfiledPlan) -> Profile:
        """What a profile says.

        Raises:
            BadInput: it is no profile, or one that cannot be read.
        """
        try:
            answer = self.reader.ask(
                "analyse", READ_TIMEOUT_S, files=list(map(str, files)), axes=dict(axes), told=record_json(told)
            )[0]
            return read_record(Profile, answer)
        except WorkerError as failure:
            raise BadInput(str(failure) if failure.refused else self.unreadable(files[0], str(failure))) from failure

    def unreadable(self, file: Path, reason: str) -> str:
        """Why a profile cannot be read, in words, from how its reader failed or ended."""
        if OUT_OF_MEMORY.search(reason):
            limit = nbytes(self.reader.memory_bytes or memory_bytes())
            reason = f"its reader needs more than {limit} of memory, its limit. Capture fewer steps."
        return f"cannot read {file}: {reason}"


def profile_name(m: Measurement) -> str:
    """A folder's name for the profile of a measurement, which nothing else in its run has."""
    work = m.workload
    heads = (
        f"{work.heads}x{work.head_dim}"
        if work.heads == work.kv_heads
        else f"{work.heads}-{work.kv_heads}x{work.head_dim}"
    )
    flags = [f"{name}-{value}" for name, value in (m.flags or {}).items()]
    parts = [format_length(work.seq_len), heads, work.batch, work.dtype, work.mask, work.passes, m.plan, *flags]
    name = re.sub(r"[^\w.]+", "-", "-".join(map(str, parts)))
    return (
        name
        if len(name) <= MAX_NAME_CHARACTERS
        else f"{name[:MAX_NAME_CHARACTERS]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    )
