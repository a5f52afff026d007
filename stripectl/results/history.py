"""A history: runs in one SQLite database, so that a metric can be followed over commits.

A run is one transaction, so concurrent writers wait for each other and a killed writer leaves nothing incomplete. The
database may come from anybody: it is opened only if it and SQLite's files next to it are regular files, its schema is
this one, without triggers or views, and its content is checked like a run.json.
"""

import contextlib
import json
import os
import sqlite3
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from stripectl.errors import BadInput
from stripectl.results.cost_source import CostSource
from stripectl.results.measurement import Measurement
from stripectl.results.run import SCHEMA, Run
from stripectl.results.run import VERSION as RUN_VERSION
from stripectl.util.files import utf8
from stripectl.util.output import ensure_writable
from stripectl.util.regular_files import open_regular

FILE = "history.sqlite"
VERSION = 1  # user_version: of the tables
APPLICATION = 0x5354_5043  # application_id: distinguishes a history from databases of other programs
BESIDE = ("", "-journal", "-wal", "-shm")  # endings of the files of a database
# The end of a journal that names the journal of several databases, a file that SQLite deletes (section 3 of
# sqlite.org/fileformat2).
JOURNAL_OF_SEVERAL = bytes.fromhex("d9d505f920a163d7")
BUSY_S = 30.0  # for which a writer waits for another
TABLES = (
    """CREATE TABLE runs (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL,
    created TEXT NOT NULL,
    time_s REAL NOT NULL,
    git TEXT,
    command TEXT NOT NULL,
    environment TEXT NOT NULL,
    "schema" TEXT NOT NULL,
    UNIQUE (id, created)
)""",
    """CREATE TABLE measurements (
    run INTEGER NOT NULL REFERENCES runs ON DELETE CASCADE,
    workload TEXT NOT NULL,
    plan TEXT NOT NULL,
    target TEXT NOT NULL,
    method TEXT NOT NULL,
    pass TEXT NOT NULL,
    status TEXT NOT NULL,
    median_s REAL,
    content TEXT NOT NULL,
    UNIQUE (workload, plan, target, method, run)
)""",
)
NEWEST_VERSION = (
    'SELECT number, id, created, command, environment, "schema" FROM runs ORDER BY time_s DESC, number DESC LIMIT ?'
)
OURS = "SELECT sql FROM sqlite_master WHERE name NOT LIKE 'sqlite\\_%' ESCAPE '\\'"  # without SQLite's own tables
KEY: tuple[str, ...] = ("workload", "plan", "target", "method")  # of `Measurement.key`
# Fields of a measurement that are not metrics.
HEAVY = ("tiles", "compiled_program", "profile", "scaling", "bottleneck_shares", "step_parts")
OTHERS = (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_FULL)


class History:
    """The history in a folder, which is created with the first run."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / FILE

    def check_writable(self) -> None:
        """Fail now, not after minutes of measuring, where no run can be added. Leaves nothing behind.

        Raises:
            BadInput: it cannot be written, is damaged, is not a history, or is newer than this stripectl.
        """
        ensure_writable(self.folder, "--history")
        if self._exists():
            with self._open("rw") as db:
                db.execute("BEGIN IMMEDIATE")
                self._made(db)
                if (found := db.execute("PRAGMA quick_check(1)").fetchone()[0]) != "ok":
                    raise sqlite3.DatabaseError(found)

    def check_there(self) -> None:
        """Fail where there is no history.

        Raises:
            BadInput: the history does not exist.
        """
        if not self._exists():
            raise BadInput(
                f"there is no history in {self.folder}/. Try stripectl bench --history {self.folder}, or "
                f"stripectl history {self.folder} --add RUN"
            )

    def add(self, run: Run) -> None:
        """Add a run, in place of an earlier copy (equal id and date).

        Raises:
            BadInput: the run has no date, or as `check_writable`.
        """
        head = {
            "id": utf8(run.id),
            "created": utf8(run.created),
            "time_s": moment(run).timestamp(),
            "git": utf8(commit) if isinstance(commit := run.environment.get("git"), str) else None,
            "command": utf8(run.command),
            "environment": json.dumps(run.environment),
            "schema": f"{SCHEMA}{RUN_VERSION}",
        }
        rows = list(map(_row, run.readable().measurements))
        with self._open("rwc") as db:
            db.execute("BEGIN IMMEDIATE")
            if not self._made(db):
                for statement in (*TABLES, f"PRAGMA user_version={VERSION}", f"PRAGMA application_id={APPLICATION}"):
                    db.execute(statement)
            db.execute("DELETE FROM runs WHERE id = :id AND created = :created", head)
            names = ", ".join(f'"{name}"' for name in head)
            values = ", ".join(f":{name}" for name in head)
            number = db.execute(f"INSERT INTO runs ({names}) VALUES ({values})", head).lastrowid
            names = ", ".join((*KEY, "pass", "status", "median_s", "content"))
            insert = f"INSERT OR REPLACE INTO measurements (run, {names}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
            db.executemany(insert, ((number, *row) for row in rows))
            db.execute("COMMIT")

    def runs(
        self,
        last: int | None = None,
        keys: Iterable[Sequence[str]] | None = None,
        equal: Mapping[str, str] | None = None,
        within: Mapping[str, str] | None = None,
    ) -> list[Run]:
        """The newest `last` runs with matching measurements, with only these, in order of time. A measurement matches
        one of `keys`, or the values `equal` and the texts `within` in these columns.

        Raises:
            BadInput: there is no history, or it is damaged, is not a history, or is newer than this stripectl.
        """
        self.check_there()
        wanted: list[Mapping[str, str]] = [equal or {}]
        if keys is not None:
            wanted = [dict(zip(KEY, key, strict=True)) for key in keys]
        found: dict[int, list[str]] = {}
        with self._open("ro") as db:
            db.execute("BEGIN")
            if not self._made(db):
                return []
            heads = db.execute(NEWEST_VERSION, (-1 if last is None else last,)).fetchall()
            for columns in wanted:
                for number, content in _select(db, columns, within or {}):
                    found.setdefault(number, []).append(content)
        return [self._run(found[head[0]], *head[1:]) for head in reversed(heads) if head[0] in found]

    def before(self, run: Run) -> list[Run]:
        """The runs before this one with measurements of the same kind, with only these, and then the run itself.

        Raises:
            BadInput: the run has no date, or as `runs`.
        """
        known = self.runs(keys=[m.key for m in run.measurements]) if self._exists() else []
        own, until = (utf8(run.id), utf8(run.created)), moment(run)
        return [*(each for each in known if moment(each) <= until and (each.id, each.created) != own), run]

    def count(self) -> int:
        """The number of runs in the history."""
        with self._open("ro") as db:
            return db.execute("SELECT count(*) FROM runs").fetchone()[0] if self._made(db) else 0

    def _check_files(self) -> None:
        """Refuse files that lead elsewhere: links, FIFOs, and a journal by which SQLite would delete another file.

        Raises:
            BadInput: there is one.
        """
        for end in BESIDE:
            path = self.path.with_name(FILE + end)
            try:
                with open(open_regular(path), "rb") as file:
                    file.seek(-min(len(JOURNAL_OF_SEVERAL), file.seek(0, os.SEEK_END)), os.SEEK_END)
                    refused = end == BESIDE[1] and file.read() == JOURNAL_OF_SEVERAL
            except FileNotFoundError:
                continue
            except OSError as error:
                raise BadInput(
                    f"cannot write or open {path}: {error.strerror}. Name a folder that you can write."
                ) from error
            if refused:
                raise BadInput(f"{path} names a file to delete, which no history of stripectl does. Remove it.")

    def _exists(self) -> bool:
        try:
            return self.path.exists()
        except OSError:  # a folder that cannot be listed: opening the file reports the reason
            return True

    def _run(
        self, contents: Sequence[str], name: Any, created: Any, command: Any, environment: Any, schema: Any
    ) -> Run:
        where = f"run {name} of {self.path}"
        try:
            content = {"schema": schema, "id": name, "created": created, "command": command}
            content |= {"environment": json.loads(environment), "measurements": list(map(json.loads, contents))}
        except (ValueError, TypeError, RecursionError) as error:
            raise BadInput(f"{where} is damaged: {error}. To replace it, add its run.json again.") from error
        return Run.from_json(content, where)

    def _made(self, db: sqlite3.Connection) -> bool:
        """Whether the tables exist.

        Raises:
            BadInput: the tables are unknown or newer.
        """
        version, application = (
            db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("user_version", "application_id")
        )
        there = {statement for (statement,) in db.execute(OURS)}
        if not there and not application:
            return False
        if application != APPLICATION:
            raise BadInput(f"{self.path} is a database of another program. Name another folder.")
        if version > VERSION:
            raise BadInput(
                f"{self.path} has version {version}, newer than this stripectl reads ({VERSION}). Upgrade stripectl."
            )
        if there != {*TABLES}:
            raise BadInput(f"{self.path} has tables that stripectl does not make. Name another folder.")
        return True

    @contextlib.contextmanager
    def _open(self, mode: str) -> Generator[sqlite3.Connection, None, None]:
        """The database, which runs nothing that it contains; a transaction that was not committed is rolled back."""
        try:
            self._check_files()
            if mode == "rwc":
                self.folder.mkdir(parents=True, exist_ok=True)
            uri = f"{self.path.absolute().as_uri()}?mode={mode}"
            with contextlib.closing(sqlite3.connect(uri, timeout=BUSY_S, uri=True, isolation_level=None)) as db:
                for pragma in ("trusted_schema=OFF", "cell_size_check=ON", "foreign_keys=ON"):
                    db.execute(f"PRAGMA {pragma}")
                yield db
        except (sqlite3.Error, UnicodeDecodeError) as error:  # the latter from a message about damaged content
            raise BadInput(self._why(error)) from error
        except OSError as error:
            raise BadInput(f"cannot make {self.folder}: {error.strerror}. Name a folder that you can write.") from error

    def _why(self, error: Exception) -> str:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return f"another program has held {self.path} for {BUSY_S:.0f} s. Try again when it is done."
        if code in OTHERS:
            return f"cannot write or open {self.path}: {error}. Name a folder that you can write."
        return f"{self.path} is not a history, or is damaged: {error}. Move it away, or name another folder."


def _row(m: Measurement) -> tuple[Any, ...]:
    """The values of a measurement's columns."""
    source = m.cost_source and CostSource(source=m.cost_source.source)
    light = replace(m, cost_source=source, **dict.fromkeys(HEAVY))
    return *map(utf8, m.key), m.workload.passes, m.status, m.median_s, json.dumps(light.to_json())


def _select(db: sqlite3.Connection, equal: Mapping[str, str], within: Mapping[str, str]) -> Iterable[tuple[int, str]]:
    """(run, content) of measurements; names of columns are this program's own, and values are parameters."""
    tests = [*(f"{name} = ?" for name in equal), *(f"instr(lower({name}), lower(?))" for name in within)]
    where = " AND ".join(tests) or "TRUE"
    values = [utf8(value) for value in (*equal.values(), *within.values())]
    return db.execute(f"SELECT run, content FROM measurements WHERE {where} ORDER BY rowid", values)


def moment(run: Run) -> datetime:
    """When a run was made; in UTC where it does not say.

    Raises:
        BadInput: the run has no date.
    """
    try:
        found = datetime.fromisoformat(run.created)
    except ValueError as error:
        raise BadInput(f"run {run.id} has no date ({run.created!r}), so a history cannot order it.") from error
    return found if found.tzinfo else found.replace(tzinfo=UTC)
