"""How much communication hides behind compute, from any XLA profile: captured here, or from elsewhere.

capture (in the workers that run the program) -> reader (a profile's events as columns) and marks (its marked steps)
-> program (the kinds of its instructions) -> calls (where steps are not marked) -> steps (one device's step) -> overlap
(figures by device, hop and axis) -> diagnosis (why a hop is exposed). A separate worker reads profiles, because a
broken profile may end the process.
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

from stripectl.core.lengths import format_length
from stripectl.core.reason import Reason, ReasonKind
from stripectl.errors import BadInput
from stripectl.profiling.diagnosis import ProfiledPlan
from stripectl.profiling.folder import PROFILES, profile_files
from stripectl.results.environment import memory_bytes
from stripectl.results.measurement import Measurement
from stripectl.results.profile import Profile
from stripectl.results.records import read_record, record_json
from stripectl.util.units import nbytes, plural
from stripectl.workers.worker_group import WorkerError, WorkerGroup

READ_TIMEOUT_S = 600.0
FOLDER = "profiles"  # in the folder of a run
MAX_NAME_CHARACTERS = 180
OUT_OF_MEMORY = re.compile(r"MemoryError|bad_alloc")


@dataclass
class Tracer:
    """Captures and reads the profiles of a run. Use it with `with`."""

    folder: Path  # of the run
    steps: int = 3
    reader: WorkerGroup = field(
        default_factory=lambda: WorkerGroup(
            session="profile", variables={"JAX_PLATFORMS": "cpu"}, memory_bytes=memory_bytes() // 2
        )
    )

    def __enter__(self) -> "Tracer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.reader.stop()

    def trace(self, devices: WorkerGroup, key: str, m: Measurement, limit_s: float, link: float | None) -> Measurement:
        """Profile a prepared plan, and add the overlap to its measurement, or the reason where that fails."""
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
            return replace(m, profile=no_profile(error))
        except (WorkerError, OSError) as failure:
            shutil.rmtree(folder, ignore_errors=True)  # so that nobody takes an unread profile for a complete one
            why = f"cannot write {folder}: {failure.strerror}" if isinstance(failure, OSError) else failure
            return replace(m, profile=no_profile(why))
        except KeyboardInterrupt:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        overlap = found.overlap and replace(found.overlap, source=f"XLA profile, {plural(found.count, found.unit)}")
        place = str(folder.relative_to(self.folder.absolute()))
        return replace(m, profile=replace(found, profile=place, overlap=None), overlap=overlap)

    def capture(self, devices: WorkerGroup, key: str, folder: Path, limit_s: float) -> None:
        """Write a profile of a prepared plan to a folder: processes that see it write, the others send theirs."""
        for each in (folder.parent, folder):
            if each.is_symlink():
                raise BadInput(f"cannot write in {each} because it is a link")
        shutil.rmtree(folder, ignore_errors=True)  # remains of a killed run
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".") as mark:
            asked = {"key": key, "steps": self.steps, "folder": str(folder), "mark": Path(mark.name).name}
            for sent in filter(None, devices.ask("profile", limit_s, **asked)):
                file = folder / PROFILES / Path(sent["name"]).name
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(base64.b64decode(sent["content"]))

    def read(self, files: Sequence[Path], axes: Mapping[str, int], told: ProfiledPlan) -> Profile:
        """The overlap in a profile.

        Raises:
            BadInput: it is not a profile, or it cannot be read.
        """
        try:
            answer = self.reader.ask(
                "analyse", READ_TIMEOUT_S, files=list(map(str, files)), axes=dict(axes), told=record_json(told)
            )[0]
            return read_record(Profile, answer)
        except WorkerError as failure:
            reason = str(failure)
            raise BadInput(reason if failure.unsupported else self.unreadable(files[0], reason)) from failure

    def unreadable(self, file: Path, reason: str) -> str:
        """Why a profile cannot be read, in words, from its reader's failure."""
        if OUT_OF_MEMORY.search(reason):
            limit = nbytes(self.reader.memory_bytes or memory_bytes())
            reason = f"its reader needs more memory than its limit of {limit}. Capture fewer steps."
        return f"cannot read {file}: {reason}"


def no_profile(why: object) -> Profile:
    """The profile of a plan of which none could be captured or read."""
    return Profile(reason=Reason(ReasonKind.NO_PROFILE, f"no profile: {why}"))


def profile_name(m: Measurement) -> str:
    """A folder name for the profile of a measurement, unique in its run."""
    work = m.workload
    heads = (
        f"{work.heads}x{work.head_dim}"
        if work.heads == work.kv_heads
        else f"{work.heads}-{work.kv_heads}x{work.head_dim}"
    )
    flags = [f"{name}-{value}" for name, value in (m.flags or {}).items()]
    parts = [format_length(work.seq_len), heads, work.batch, work.dtype, work.masks_text, work.passes, m.plan, *flags]
    name = re.sub(r"[^\w.]+", "-", "-".join(map(str, parts)))
    return (
        name
        if len(name) <= MAX_NAME_CHARACTERS
        else f"{name[:MAX_NAME_CHARACTERS]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    )
