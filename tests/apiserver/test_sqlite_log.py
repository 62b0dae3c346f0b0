# SPDX-License-Identifier: Apache-2.0
"""A store on a SQLite file: what a restart finds, what it forgets, and what a kill cannot take away."""

import asyncio
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.apiserver.failures import Failure
from dovetail.apiserver.objects import Key, Object
from dovetail.apiserver.sqlite_log import SqliteLog, StoreUnreadable
from dovetail.apiserver.store import HistoryBounds, Store
from tests.apiserver import killed

OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["pods", "jobs"]), st.sampled_from(["a", "b", "c"]), st.integers(0, 9) | st.none()),
    max_size=25,
)
BOUNDS = st.builds(HistoryBounds, changes=st.integers(0, 12), size=st.integers(0, 900))


def document(name: str, value: int) -> Object:
    return {"metadata": {"namespace": "default", "name": name}, "data": {"value": value}}


def carry_out(store: Store, operation: tuple[str, str, int | None]) -> None:
    """Write the object, or remove it where there is no value."""
    collection, name, value = operation
    if value is not None:
        store.put_raw(collection, document(name, value))
    elif store.get(collection, "default", name) is not None:
        store.remove(collection, ("default", name))


def past(store: Store, collection: str) -> dict[int, dict[Key, Object]]:
    """The objects of the collection at each version that can still be read."""
    found = {}
    for version in range(store.version + 1):
        try:
            found[version] = dict(store.collection(collection).as_of(version))
        except Failure as failure:
            assert failure.code == 410
    return found


@pytest.mark.slow
@given(OPERATIONS, st.integers(0, 25), BOUNDS)
def test_a_restart_finds_what_a_store_in_memory_has(
    tmp_path_factory: pytest.TempPathFactory, operations: list[tuple[str, str, int | None]], split: int,
    bounds: HistoryBounds,
) -> None:  # fmt: skip
    file = tmp_path_factory.mktemp("store") / "one.sqlite"
    memory = Store()

    async def live() -> None:
        for part in (operations[:split], operations[split:]):
            store = Store(bounds, log=SqliteLog(file))
            for operation in part:
                carry_out(store, operation)
                carry_out(memory, operation)
                await store.written()
            await store.log.close()
        again = Store(bounds, log=SqliteLog(file))
        assert again.version == memory.version
        for collection in ("pods", "jobs"):
            assert again.collection(collection).objects == memory.collection(collection).objects
            mine, whole = past(again, collection), past(memory, collection)
            assert again.version in mine
            assert mine == {version: whole[version] for version in mine}
            kept = again.collection(collection).changes
            same = list(memory.collection(collection).changes)[len(memory.collection(collection).changes) - len(kept) :]
            assert [(c.version, c.object, c.previous, c.removed) for c in kept] == [
                (c.version, c.object, c.previous, c.removed) for c in same
            ]
        assert len(again.collection("pods").changes) + len(again.collection("jobs").changes) <= bounds.changes
        await again.log.close()

    asyncio.run(live())


async def test_history_is_bounded_by_number_age_and_size_also_in_the_file(tmp_path: Path) -> None:
    now_s = 1000.0
    bounds = HistoryBounds(changes=4, age_s=60, size=600)

    def opened() -> Store:
        return Store(bounds, log=SqliteLog(tmp_path / "one.sqlite"), clock=lambda: now_s)

    def kept() -> list[int]:
        rows = sqlite3.connect(tmp_path / "one.sqlite").execute("SELECT version FROM changes ORDER BY version")
        return [version for (version,) in rows]

    store = opened()
    for value in range(9):
        store.put_raw("pods", document("a", value))
    await store.written()
    assert kept() == [7, 8, 9, 10]
    store.put_raw("pods", document("b" * 400, 1))
    await store.written()
    assert kept() == [10, 11]
    now_s += 61
    store.put_raw("pods", document("a", 100))
    await store.written()
    assert kept() == [12]
    await store.log.close()
    store = opened()
    assert store.collection("pods").since(11) == 1
    with pytest.raises(Failure, match="too old resource version: 10"):
        store.collection("pods").since(10)
    # A collection of which nothing is known can have changed before what is kept as well.
    with pytest.raises(Failure, match="too old"):
        store.collection("jobs").since(10)
    await store.log.close()


async def test_writes_that_come_during_a_commit_share_the_next_one(tmp_path: Path) -> None:
    steps: list[str] = []
    began, disk = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def at_step(step: str) -> None:
        steps.append(step)
        if step == "begin":
            loop.call_soon_threadsafe(began.set)
            disk.wait()

    store = Store(log=SqliteLog(tmp_path / "one.sqlite", at_step))

    async def write(number: int) -> None:
        store.put_raw("pods", document(f"p{number}", 1))
        await store.written()

    first = asyncio.create_task(write(0))
    await began.wait()
    others = [asyncio.create_task(write(number)) for number in range(1, 40)]
    await asyncio.sleep(0)
    assert not first.done()
    disk.set()
    await asyncio.gather(first, *others)
    assert (steps.count("begin"), steps.count("row")) == (2, 40)
    await store.log.close()


async def test_a_commit_that_fails_is_reported_to_all_that_wait_and_changes_nothing(tmp_path: Path) -> None:
    broken = False

    def at_step(step: str) -> None:
        if broken and step == "floor":
            raise sqlite3.OperationalError("database or disk is full")

    log = SqliteLog(tmp_path / "one.sqlite", at_step)
    store = Store(log=log)
    store.put_raw("pods", document("a", 1))
    await store.written()
    broken = True
    for value in (2, 3):
        store.put_raw("pods", document("a", value))
    with pytest.raises(Failure, match="disk is full"):
        await store.written()
    assert log.failed
    with pytest.raises(Failure) as refused:
        store.put_raw("pods", document("b", 1))
    assert refused.value.code == 503 and store.get("pods", "default", "b") is None
    await log.close()
    again = Store(log=SqliteLog(tmp_path / "one.sqlite"))
    assert [obj["data"] for obj in again.list("pods")] == [{"value": 1}]
    await again.log.close()


def test_a_file_that_is_no_store_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no database, but long enough to be examined as one. " * 50)
    with pytest.raises(StoreUnreadable, match="text: file is not a database"):
        SqliteLog(tmp_path / "text")
    newer = sqlite3.connect(tmp_path / "newer")
    newer.execute("PRAGMA user_version = 99")
    with pytest.raises(StoreUnreadable, match="format 99; this program reads format 1"):
        SqliteLog(tmp_path / "newer")


@pytest.mark.slow
def test_a_kill_at_any_step_loses_no_acknowledged_write_and_leaves_no_half_one(tmp_path: Path) -> None:
    steps = 60
    subprocess.run([sys.executable, killed.__file__, tmp_path, str(steps)], check=True)
    acknowledgements = 0
    for step in range(1, steps + 1):
        store = Store(log=SqliteLog(tmp_path / f"{step}.sqlite"))
        acknowledged = (tmp_path / f"{step}.acknowledged").read_text().splitlines()
        acknowledgements += len(acknowledged)
        left, right = ({obj["metadata"]["name"]: obj["data"] for obj in store.list(c)} for c in ("left", "right"))
        assert left == right
        for writer, value, version in (map(int, line.split()) for line in acknowledged):
            assert store.version >= version
            # A writer goes on from what is acknowledged, so it cannot be behind that; each third value is removed.
            found = left.get(f"w{writer}", {"value": -1})["value"]
            assert found >= value or found == -1
            changes = [c for c in store.collection("left").changes if c.object["metadata"]["name"] == f"w{writer}"]
            assert any(c.object["data"]["value"] == value for c in changes)
        versions = sorted(c.version for name in ("left", "right") for c in store.collection(name).changes)
        assert versions == list(range(2, store.version + 1))
    assert acknowledgements > steps
