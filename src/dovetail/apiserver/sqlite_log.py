# SPDX-License-Identifier: Apache-2.0
"""The writes of one store in a SQLite file.

What was answered is on disk: `written` returns after the commit, with an fsync (WAL, synchronous=FULL). All writes that
come while a commit is under way go into the next one, so many clients share one fsync. A commit is whole or absent:
after a kill at any moment the file has all writes up to one version and nothing of the later ones.

`objects` has each object as it is now, `changes` for each write of the recent past what was there before it: the same
history that the store has in memory, from which watches resume after a restart. A file that cannot be written fails
the log for good; the store must be opened again from what is on disk.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from pathlib import Path

import msgspec
from msgspec import Struct

from dovetail.apiserver.change_log import StoredContents
from dovetail.apiserver.changes import StoreChange, at_version
from dovetail.apiserver.failures import Failure
from dovetail.apiserver.objects import Key, Object, key_of
from dovetail.core.json_text import decode_json

FORMAT = 1
"""Of the file. A program opens its own format only."""
_SCHEMA = """
CREATE TABLE store (one INTEGER PRIMARY KEY CHECK (one = 1), version INTEGER NOT NULL, floor INTEGER NOT NULL);
CREATE TABLE objects (
  collection TEXT, namespace TEXT, name TEXT, document BLOB NOT NULL, PRIMARY KEY (collection, namespace, name)
) WITHOUT ROWID;
CREATE TABLE changes (
  version INTEGER PRIMARY KEY, collection TEXT, namespace TEXT, name TEXT, at_s REAL, size INTEGER, previous BLOB
);
INSERT INTO store VALUES (1, 1, 0);
"""
_SETTINGS = (
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = FULL",
    # Contents are read once, and then written only: a small cache is enough, and a short WAL.
    "PRAGMA cache_size = -128",
    "PRAGMA wal_autocheckpoint = 256",
)
_KEEP_PREVIOUS = """
INSERT INTO changes VALUES (?1, ?2, ?3, ?4, ?5, ?6,
  (SELECT document FROM objects WHERE collection = ?2 AND namespace = ?3 AND name = ?4))
"""
_PUT = "INSERT OR REPLACE INTO objects VALUES (?, ?, ?, ?)"
_REMOVE = "DELETE FROM objects WHERE collection = ? AND namespace = ? AND name = ?"


class StoreUnreadable(Exception):
    """The file is not one of a store, is of another format, or is damaged."""


class _Row(Struct, frozen=True):
    """One write. `document` is None for a removal."""

    version: int
    collection: str
    key: Key
    at_s: float
    document: bytes | None
    size: int


class _Batch(Struct):
    """Writes of one commit."""

    rows: list[_Row]
    floor: int
    done: asyncio.Future[None]


class SqliteLog:
    """The log of one file, which is made if it is not there. Raises StoreUnreadable.

    `at_step` is called in the thread that writes, before each step of a commit; tests end the process there.
    """

    def __init__(self, path: Path, at_step: Callable[[str], None] = lambda _: None) -> None:
        self._path = path
        self._at_step = at_step
        self._waiting: _Batch | None = None
        self._flying: _Batch | None = None
        self._floor = 0
        self._version = 1
        self._failure: Failure | None = None
        try:
            # One commit at a time uses the connection, from whichever thread.
            self._file = sqlite3.connect(path, isolation_level=None, check_same_thread=False, cached_statements=8)
            self._prepare()
        except sqlite3.Error as error:
            raise StoreUnreadable(f"{path}: {error}") from error

    def _prepare(self) -> None:
        for setting in _SETTINGS:
            self._file.execute(setting)
        (found,) = self._file.execute("PRAGMA user_version").fetchone()
        if found not in (0, FORMAT):
            raise StoreUnreadable(f"{self._path}: format {found}; this program reads format {FORMAT}")
        if found == 0:
            self._file.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} PRAGMA user_version = {FORMAT}; COMMIT;")

    @property
    def failed(self) -> bool:
        """Whether a commit failed: what is in memory may be more than what is on disk."""
        return self._failure is not None

    def contents(self) -> StoredContents:
        """What is in the file. Raises StoreUnreadable."""
        try:
            return self._contents()
        except (sqlite3.Error, msgspec.DecodeError) as error:
            raise StoreUnreadable(f"{self._path}: {error}") from error

    def _contents(self) -> StoredContents:
        read = self._file.execute
        self._version, self._floor = read("SELECT version, floor FROM store").fetchone()
        objects = [(row[0], _decoded(row[1])) for row in read("SELECT collection, document FROM objects")]
        after: dict[tuple[str, Key], Object | None] = {(name, key_of(obj)): obj for name, obj in objects}
        changes = []
        for version, collection, namespace, name, at_s, size, blob in read(
            "SELECT * FROM changes WHERE version > ? ORDER BY version DESC", (self._floor,)
        ):
            place = collection, (namespace, name)
            previous = None if blob is None else _decoded(blob)
            now = after.get(place)
            after[place] = previous
            shown = now if now is not None else at_version(previous or {}, version)
            changes.append((collection, StoreChange(version, shown, previous, now is None, at_s, size)))
        return StoredContents(self._version, self._floor, objects, changes[::-1])

    def append(self, collection: str, change: StoreChange) -> int:
        """Takes a write into the next commit. Raises a 503 Failure if an earlier commit failed."""
        if self._failure is not None:
            raise self._failure
        document = msgspec.json.encode(change.object)
        kept = None if change.removed else document
        row = _Row(change.version, collection, key_of(change.object), change.at_s, kept, len(document))
        self._version = change.version
        self._batch().rows.append(row)
        return len(document)

    def forget(self, version: int) -> None:
        """Drops changes with the next commit that is made anyway."""
        self._floor = version
        self._version = max(self._version, version)
        if self._waiting is not None:
            self._waiting.floor = version

    def _batch(self) -> _Batch:
        if self._waiting is None:
            self._waiting = _Batch([], self._floor, asyncio.get_running_loop().create_future())
            if self._flying is None:
                self._start()
        return self._waiting

    def _start(self) -> None:
        """Begins the next commit, once the writes of this turn of the event loop are in it."""
        asyncio.get_running_loop().call_soon(self._fly)

    def _fly(self) -> None:
        batch, self._waiting = self._waiting, None
        if batch is None:
            return
        self._flying = batch
        commit = asyncio.get_running_loop().run_in_executor(None, self._commit, batch.rows, batch.floor)
        commit.add_done_callback(self._landed)

    def _landed(self, commit: asyncio.Future[None]) -> None:
        error = None if commit.cancelled() else commit.exception()
        if error is not None or commit.cancelled():
            why = f"the store cannot be written: {error}"
            self._failure = Failure(503, "ServiceUnavailable", why, retry_after_s=1)
        for batch in (self._flying, self._waiting if self._failure else None):
            if batch is not None and not batch.done.done():
                batch.done.set_result(None)
        self._flying = None
        if self._failure is not None:
            self._waiting = None
        elif self._waiting is not None:
            self._fly()

    def _commit(self, rows: list[_Row], floor: int) -> None:
        """Writes one batch, in a thread. Raises sqlite3.Error, and has written nothing then."""
        run, step = self._file.execute, self._at_step
        step("begin")
        run("BEGIN IMMEDIATE")
        try:
            for row in rows:
                step("row")
                place = (row.collection, *row.key)
                run(_KEEP_PREVIOUS, (row.version, *place, row.at_s, row.size))
                if row.document is None:
                    run(_REMOVE, place)
                else:
                    run(_PUT, (*place, row.document))
            step("floor")
            run("DELETE FROM changes WHERE version <= ?", (floor,))
            run("UPDATE store SET version = max(version, ?), floor = ?", (rows[-1].version, floor))
            step("commit")
            run("COMMIT")
        except sqlite3.Error:
            if self._file.in_transaction:
                run("ROLLBACK")
            raise
        step("committed")

    async def written(self) -> None:
        """Returns when what was appended so far is on disk. Raises a 503 Failure if some of it cannot be."""
        batch = self._waiting or self._flying
        if batch is not None:
            await asyncio.shield(batch.done)
        if self._failure is not None:
            raise self._failure

    async def close(self) -> None:
        """Waits for the commits, and closes the file. A failed log closes without a word."""
        while (batch := self._waiting or self._flying) is not None:
            await asyncio.shield(batch.done)
            await asyncio.sleep(0)
        self._file.close()


def _decoded(blob: bytes) -> Object:
    return decode_json(blob, dict)
