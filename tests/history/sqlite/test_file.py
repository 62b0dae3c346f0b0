# SPDX-License-Identifier: Apache-2.0
"""Files that cannot be opened, read or written."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from dovetail.history.records import DAY_MS, GpuHold, HistoryBatch, Period, PodRecord
from dovetail.history.sqlite.file import FORMAT
from dovetail.history.sqlite.reader import SqliteReader
from dovetail.history.sqlite.store import SqliteStore
from dovetail.history.store import StoreError
from tests.history.sqlite import killed

ALWAYS = Period(0, 2**50)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file with some batches."""
    path = tmp_path / "history.db"
    with closing(SqliteStore(path)) as store:
        for number in range(1, 40):
            store.write(killed.batch(number))
    return path


def refused(open_: Callable[[], object]) -> str:
    with pytest.raises(StoreError) as found:
        open_()
    return str(found.value)


def both_refuse(path: Path) -> str:
    before = path.read_bytes()
    message = refused(lambda: SqliteStore(path))
    assert refused(lambda: SqliteReader(path)) == message
    assert path.read_bytes() == before
    return message


def test_a_file_of_a_newer_format_is_refused(path: Path) -> None:
    with closing(sqlite3.connect(path)) as file:
        file.execute(f"PRAGMA user_version = {FORMAT + 1}")
    assert both_refuse(path) == (
        f"{path}: it is of format {FORMAT + 1}, and this program knows formats up to {FORMAT}; "
        "use the version of Dovetail that wrote it, or a newer one"
    )


def test_a_file_of_another_program_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with closing(sqlite3.connect(path)) as file:
        file.execute("CREATE TABLE mine (a)")
    assert both_refuse(path) == f"{path}: it is a SQLite file of another program; choose another file"


def test_a_file_that_is_none_of_sqlite_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "text.db"
    path.write_text("no database\n" * 1000)
    assert "it is no SQLite file, or it is damaged" in both_refuse(path)


def test_an_empty_file_can_be_written_but_not_read(tmp_path: Path) -> None:
    path = tmp_path / "empty.db"
    path.touch()
    assert "it is empty; wait until the collector has begun it" in refused(lambda: SqliteReader(path))
    SqliteStore(path).close()
    SqliteReader(path).close()


def test_a_folder_that_is_not_there_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "none" / "history.db"
    assert refused(lambda: SqliteStore(path)) == (
        f"{path}: it cannot be opened (No such file or directory); make its folder, and let this process write there"
    )


def test_a_second_writer_is_refused_while_the_first_one_runs(path: Path) -> None:
    with closing(SqliteStore(path)):
        assert "another process writes it; end that process, or use another file" in refused(lambda: SqliteStore(path))
    SqliteStore(path).close()


@pytest.mark.parametrize("page", range(2, 20))
@pytest.mark.slow
def test_a_file_with_a_damaged_page_is_refused_by_the_writer(path: Path, page: int) -> None:
    with path.open("r+b") as file:
        file.seek(4096 * (page - 1))
        file.write(b"\x7f" * 4096)
    message = refused(lambda: SqliteStore(path))
    assert message.startswith(f"{path}: it is damaged (")
    assert message.endswith("; move it away, and restore a copy or begin a new one")


def test_a_file_that_is_cut_off_is_refused(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(4096 * 5)
    assert "it is damaged (" in refused(lambda: SqliteStore(path))


def test_a_reader_reports_damage_where_it_meets_it(path: Path) -> None:
    with closing(sqlite3.connect(path)) as file:
        file.execute("UPDATE pods SET labels = '[1'")
        file.execute("UPDATE hours SET detail = x'00'")
        file.commit()
    with closing(SqliteReader(path)) as reader:
        assert "it is damaged (" in refused(lambda: list(reader.pods(ALWAYS)))
        assert "it is damaged (" in refused(lambda: list(reader.use(ALWAYS)))
        assert list(reader.spans(ALWAYS))


def test_a_disk_without_room_fails_the_batch_and_not_the_file(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    with closing(SqliteStore(path)) as store:
        store.write(killed.batch(1))
        (pages,) = store.run("PRAGMA page_count").fetchone()
        store.run(f"PRAGMA max_page_count = {pages + 2}")
        large = [PodRecord(f"p{n}", "a", "b", "c", message="x" * 1000) for n in range(100)]
        batch = HistoryBatch(killed.APART_MS + 1, pods=large, holds=[GpuHold("p0", "gpu", 1, "share", 1)])
        message = refused(lambda: store.write(batch))
        assert message.startswith(f"{path}: there is no room on its disk (")
        assert message.endswith("; free some of the disk, or keep records for a shorter time")
        assert store.known().end_ms == killed.APART_MS
        assert not list(store.pods_of(["p0"]))
        store.run("PRAGMA max_page_count = 1000000")
        store.write(batch)
        assert len(list(store.pods_of(["p0", "p99"]))) == 2


AS_NOBODY = """
import os, sys
from contextlib import closing
from pathlib import Path
from dovetail.history.records import Period
from dovetail.history.sqlite.reader import SqliteReader
from dovetail.history.sqlite.store import SqliteStore
from dovetail.history.store import StoreError
if not os.geteuid():
    os.setgid(65534), os.setuid(65534)
path = Path(sys.argv[1])
try:
    SqliteStore(path)
except StoreError as error:
    print(error)
with closing(SqliteReader(path)) as reader:
    print(len(list(reader.pods(Period(0, 2**50)))))
"""


@pytest.mark.slow
def test_a_file_that_may_only_be_read_is_read_and_not_written(path: Path) -> None:
    lock = path.with_name(f"{path.name}.lock")
    folders = [folder for folder in path.parents if folder.stat().st_uid == os.getuid()]
    modes = {folder: folder.stat().st_mode for folder in folders}
    for folder in folders:
        folder.chmod(0o755)
    path.chmod(0o444)
    lock.chmod(0o666)
    path.parent.chmod(0o555)
    run = subprocess.run([sys.executable, "-c", AS_NOBODY, path], capture_output=True, text=True, check=False)
    for folder, mode in modes.items():
        folder.chmod(mode)
    assert run.returncode == 0, run.stderr
    message, pods = run.stdout.splitlines()
    assert message.startswith(f"{path}: it cannot be ")
    assert message.endswith("; let this process write the file and its folder") or "read and write" in message
    assert pods == "39"


@pytest.fixture(params=[1, 2])
def old(path: Path, request: pytest.FixtureRequest) -> Path:
    """The file as a program wrote it that knew no sums of days, or none by pod."""
    with closing(sqlite3.connect(path)) as file:
        if request.param == 1:
            file.execute("DROP TABLE day_sums")
            file.execute("DROP INDEX holds_ends")
            file.execute("CREATE INDEX holds_open ON holds (gpu) WHERE end_ms = 0")
        else:
            file.execute("ALTER TABLE day_sums DROP COLUMN by_pod")
        for column in ("cpu_milli", "memory_mib", "checkpoint_interval_ms"):
            file.execute(f"ALTER TABLE pods DROP COLUMN {column}")
        file.execute(f"PRAGMA user_version = {request.param}")
        file.commit()
    return path


def test_a_file_of_an_older_format_is_read_and_not_changed(old: Path) -> None:
    before = old.read_bytes()
    with closing(SqliteReader(old)) as reader:
        assert list(reader.day_sums(ALWAYS)) == list(reader.pod_days(ALWAYS)) == []
        assert len(list(reader.pods(ALWAYS))) == 39
    assert old.read_bytes() == before


def test_a_writer_brings_a_file_of_an_older_format_to_this_one(old: Path) -> None:
    with closing(SqliteReader(old)) as reader:
        pods = list(reader.pods(ALWAYS))
    with closing(SqliteStore(old)) as store:
        while store.retain(39 * killed.APART_MS):
            pass
    with closing(SqliteReader(old)) as reader:
        assert list(reader.pods(ALWAYS)) == pods
        days = 39 * killed.APART_MS // DAY_MS
        assert len(list(reader.day_sums(ALWAYS))) == len(list(reader.pod_days(ALWAYS))) == days
    with closing(sqlite3.connect(old)) as file:
        assert file.execute("PRAGMA user_version").fetchone() == (FORMAT,)


@pytest.mark.parametrize("by_pod", [b"\0", msgspec.msgpack.encode([0, [], [], [], b"none", 0, 0])])
def test_damaged_sums_are_reported(path: Path, by_pod: bytes) -> None:
    with closing(sqlite3.connect(path)) as file:
        file.execute("INSERT INTO day_sums VALUES (0, x'00', ?)", (by_pod,))
        file.commit()
    with closing(SqliteReader(path)) as reader:
        assert "it is damaged (" in refused(lambda: list(reader.day_sums(ALWAYS)))
        assert "it is damaged (" in refused(lambda: list(reader.pod_days(ALWAYS)))
