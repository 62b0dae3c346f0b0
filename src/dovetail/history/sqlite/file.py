# SPDX-License-Identifier: Apache-2.0
"""The file of a store: its tables, how it is opened, and what is wrong with one that cannot be opened or used.

Rules
- The format is `user_version`; `application_id` shows that the file is one of this program. A file of a newer format,
  or of another program, is refused and not changed.
- The writer checks the structure of the whole file when it opens it. Readers do not, since that reads all of it.
- WAL, so that readers do not wait. synchronous=FULL: a batch is on disk when `write` returns, and stays there if the
  machine stops.
- Ids stand for names of GPUs and uids of pods. Where there is no pod, as in use by nobody, the id is 0.
- One process writes: it locks PATH.lock. SQLite's own locks last for one transaction.
"""

from __future__ import annotations

import fcntl
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO
from urllib.parse import quote

import msgspec

from dovetail.core.json_text import JsonError
from dovetail.history.store import StoreError

FORMAT = 3
"""Of the file. A writer brings an older one to it; a reader reads all."""
SUMS_SINCE = 2
"""The format since which there are sums of days."""
PODS_SINCE = 3
"""The format since which pods have what they request of a node, and how often they save, and there are sums of days by
pod."""
APPLICATION = 0x44764869
_SCHEMA = """
CREATE TABLE store (one INTEGER PRIMARY KEY CHECK (one = 1), first_ms INTEGER, until_ms INTEGER NOT NULL);
INSERT INTO store VALUES (1, NULL, 0);
CREATE TABLE gpu_ids (id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE);
CREATE TABLE pod_ids (id INTEGER PRIMARY KEY AUTOINCREMENT, uid TEXT NOT NULL UNIQUE);
CREATE TABLE use_activities (id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE);
CREATE TABLE spans (
  gpu INTEGER, start_ms INTEGER, end_ms INTEGER NOT NULL, node TEXT NOT NULL, gpu_index INTEGER NOT NULL,
  gpus INTEGER NOT NULL, model TEXT NOT NULL, health TEXT NOT NULL, instance_type TEXT NOT NULL, region TEXT NOT NULL,
  zone TEXT NOT NULL, spot INTEGER NOT NULL, PRIMARY KEY (gpu, start_ms)
) WITHOUT ROWID;
CREATE INDEX spans_open ON spans (gpu) WHERE end_ms = 0;
CREATE TABLE holds (
  gpu INTEGER, start_ms INTEGER, pod INTEGER, device TEXT, end_ms INTEGER NOT NULL, milli INTEGER NOT NULL,
  kind INTEGER NOT NULL, named INTEGER NOT NULL, PRIMARY KEY (gpu, start_ms, pod, device)
) WITHOUT ROWID;
CREATE INDEX holds_open ON holds (gpu) WHERE end_ms = 0;
CREATE INDEX holds_of ON holds (pod);
CREATE TABLE pods (
  id INTEGER PRIMARY KEY, namespace TEXT NOT NULL, name TEXT NOT NULL, job TEXT NOT NULL, kind TEXT NOT NULL,
  user TEXT NOT NULL, queue TEXT NOT NULL, scheduler TEXT NOT NULL, lease TEXT NOT NULL, priority INTEGER NOT NULL,
  labels TEXT NOT NULL, gpus TEXT NOT NULL, gpu_milli INTEGER NOT NULL, node TEXT NOT NULL,
  submitted_ms INTEGER NOT NULL, bound_ms INTEGER NOT NULL, started_ms INTEGER NOT NULL, ended_ms INTEGER NOT NULL,
  restarts INTEGER NOT NULL, outcome TEXT NOT NULL, code TEXT NOT NULL, message TEXT NOT NULL
);
CREATE INDEX pods_ended ON pods (ended_ms);
CREATE INDEX pods_of ON pods (namespace, job);
CREATE TABLE use_sources (id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE);
CREATE TABLE hours (
  start_ms INTEGER, gpu INTEGER, pod INTEGER, source INTEGER, measured_ms INTEGER NOT NULL, use INTEGER NOT NULL,
  idle_ms INTEGER NOT NULL, memory_peak_mib INTEGER NOT NULL, used_until_ms INTEGER NOT NULL, detail BLOB,
  PRIMARY KEY (start_ms, gpu, pod, source)
) WITHOUT ROWID;
CREATE TABLE days (
  start_ms INTEGER, gpu INTEGER, pod INTEGER, measured_ms INTEGER NOT NULL, use INTEGER NOT NULL,
  idle_ms INTEGER NOT NULL, memory_peak_mib INTEGER NOT NULL, used_until_ms INTEGER NOT NULL, detail BLOB,
  PRIMARY KEY (start_ms, gpu, pod)
) WITHOUT ROWID;
CREATE TABLE pod_days (
  start_ms INTEGER, pod INTEGER, measured_ms INTEGER NOT NULL, use INTEGER NOT NULL, idle_ms INTEGER NOT NULL,
  PRIMARY KEY (start_ms, pod)
) WITHOUT ROWID;
CREATE TABLE gaps (start_ms INTEGER, end_ms INTEGER, reason TEXT NOT NULL, PRIMARY KEY (start_ms, end_ms));
"""
_CHANGES = {
    SUMS_SINCE: """
CREATE TABLE day_sums (start_ms INTEGER PRIMARY KEY, sums BLOB NOT NULL);
DROP INDEX holds_open;
CREATE INDEX holds_ends ON holds (gpu, end_ms);
""",
    PODS_SINCE: """
ALTER TABLE pods ADD COLUMN cpu_milli INTEGER NOT NULL DEFAULT 0;
ALTER TABLE pods ADD COLUMN memory_mib INTEGER NOT NULL DEFAULT 0;
ALTER TABLE pods ADD COLUMN checkpoint_interval_ms INTEGER NOT NULL DEFAULT 0;
DELETE FROM day_sums;
ALTER TABLE day_sums ADD COLUMN by_pod BLOB NOT NULL DEFAULT x'';
""",
}
"""What was added by each format after the first one."""
_RESTORE = "move it away, and restore a copy or begin a new one"
_FAULTS = {
    sqlite3.SQLITE_FULL: ("there is no room on its disk", "free some of the disk, or keep records for a shorter time"),
    sqlite3.SQLITE_READONLY: ("it cannot be written", "let this process write the file and its folder"),
    sqlite3.SQLITE_CORRUPT: ("it is damaged", _RESTORE),
    sqlite3.SQLITE_NOTADB: ("it is no SQLite file, or it is damaged", _RESTORE),
    sqlite3.SQLITE_CANTOPEN: ("it cannot be opened", "let this process read and write the file and its folder"),
    sqlite3.SQLITE_BUSY: ("another process has locked it", "end the other process, and try again"),
}


def fault(path: Path, error: Exception) -> StoreError:
    """What is wrong with the file, as the store reports it."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if isinstance(error, msgspec.MsgspecError | JsonError):
        code = sqlite3.SQLITE_CORRUPT
    rule, fix = _FAULTS.get(code, ("it cannot be used", "see whether its disk works"))
    return StoreError(str(path), f"{rule} ({error})", fix)


@contextmanager
def reported(path: Path) -> Iterator[None]:
    """Errors of SQLite, and of what is decoded, become StoreErrors."""
    try:
        yield
    except (sqlite3.Error, msgspec.MsgspecError, JsonError) as error:
        raise fault(path, error) from error


def lock(path: Path) -> IO[bytes]:
    """The writer's lock on the file; it is held until it is closed. Raises StoreError."""
    try:
        held = path.with_name(f"{path.name}.lock").open("ab")
    except OSError as error:
        fix = "make its folder, and let this process write there"
        raise StoreError(str(path), f"it cannot be opened ({error.strerror})", fix) from error
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        held.close()
        raise StoreError(str(path), "another process writes it", "end that process, or use another file") from error
    return held


def open_to_write(path: Path, cache_mib: int) -> sqlite3.Connection:
    """The file, which is made if it is not there. Raises StoreError."""
    with reported(path):
        # One thread at a time uses the connection, whichever it is.
        file = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=10)
        try:
            _prepare(path, file, cache_mib)
        except BaseException:
            file.close()
            raise
        return file


def _prepare(path: Path, file: sqlite3.Connection, cache_mib: int) -> None:
    found_format = check_format(path, file)
    if found_format and (found := file.execute("PRAGMA quick_check(1)").fetchone()[0]) != "ok":
        raise StoreError(str(path), f"it is damaged ({found})", _RESTORE)
    (mode,) = file.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise StoreError(str(path), f"its journal mode is {mode}", "keep it on a local disk: it has to be in WAL mode")
    file.execute("PRAGMA synchronous = FULL")
    file.execute(f"PRAGMA cache_size = -{cache_mib * 1024}")
    # Whether it can be written shows now, and not in the middle of the first batch.
    first = "UPDATE store SET until_ms = until_ms;" if found_format else _SCHEMA
    changes = " ".join(change for number, change in _CHANGES.items() if number > found_format)
    settings = f"PRAGMA application_id = {APPLICATION}; PRAGMA user_version = {FORMAT};"
    file.executescript(f"BEGIN IMMEDIATE; {first} {changes} {settings} COMMIT;")


def open_to_read(path: Path, cache_mib: int = 16) -> sqlite3.Connection:
    """The file as it is now: what is written later does not show. Raises StoreError."""
    if not path.is_file():
        raise StoreError(str(path), "there is no such file", "pass the file that the collector writes")
    with reported(path):
        file = _begin(path, "mode=ro")
        with suppress(sqlite3.Error):
            file.execute(f"PRAGMA cache_size = -{cache_mib * 1024}")
        return file


def _begin(path: Path, how: str) -> sqlite3.Connection:
    file = sqlite3.connect(
        f"file:{quote(str(path.absolute()))}?{how}", uri=True, isolation_level=None, check_same_thread=False, timeout=10
    )
    try:
        file.execute("BEGIN")
        if not check_format(path, file):
            raise StoreError(str(path), "it is empty", "wait until the collector has begun it")
        file.execute("SELECT 1 FROM store").fetchone()
    except sqlite3.OperationalError as error:
        file.close()
        code, log = error.sqlite_errorcode & 0xFF, path.with_name(f"{path.name}-wal")
        # A file in WAL mode needs a second one beside it, also to read it, unless nothing can change it.
        if code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY) and how == "mode=ro" and not log.exists():
            return _begin(path, "immutable=1")
        raise
    except BaseException:
        file.close()
        raise
    return file


def check_format(path: Path, file: sqlite3.Connection) -> int:
    """The format of the file, 0 if it is new, without tables. Raises StoreError for a file of a format that this
    program does not know."""
    (application,) = file.execute("PRAGMA application_id").fetchone()
    (found,) = file.execute("PRAGMA user_version").fetchone()
    (tables,) = file.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if not (application or found or tables):
        return 0
    if application != APPLICATION:
        raise StoreError(str(path), "it is a SQLite file of another program", "choose another file")
    if found > FORMAT:
        rule = f"it is of format {found}, and this program knows formats up to {FORMAT}"
        raise StoreError(str(path), rule, "use the version of Dovetail that wrote it, or a newer one")
    if found < 1:
        raise StoreError(str(path), f"it is of the unknown format {found}", _RESTORE)
    return int(found)
