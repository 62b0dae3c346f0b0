# SPDX-License-Identifier: Apache-2.0
"""Writes under one id come in order, each until it is taken; the last status of several counts."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine

import pytest

from dovetail.scheduler import ordered_writes
from dovetail.scheduler.ordered_writes import OrderedWrites, WriteRefused
from tests.scheduler.scripted import AWAY, BROKEN, BUSY, FORBIDDEN, FULL, GONE, until


class Log:
    """`done` are the writes that were carried out; each takes as long as `gate` is closed, and first raises what
    `errors` has for it."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.refused: list[str] = []
        self.errors: dict[str, list[Exception]] = {}
        self.gate = asyncio.Event()
        self.gate.set()
        self.leads = True
        self.tasks: set[asyncio.Task[None]] = set()
        self.writes = OrderedWrites(
            may_write=lambda: self.leads,
            spawn=self._spawn,
            refused=lambda id_, why: self.refused.append(f"{id_}: {why}"),
        )

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def add(self, id_: str, name: str, kind: str = "lease", *, replaces: bool = False, patient: bool = False) -> None:
        async def carry_out() -> None:
            await self.gate.wait()
            if errors := self.errors.get(name):
                raise errors.pop(0)
            self.done.append(name)

        self.writes.add(id_, kind, carry_out, replaces=replaces, patient=patient)


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    monkeypatch.setattr(ordered_writes, "_AGAIN_S", 0.005)
    monkeypatch.setattr(ordered_writes, "_AGAIN_MAX_S", 0.02)
    return Log()


async def test_in_order_under_one_id_and_at_the_same_time_under_others(log: Log) -> None:
    log.gate.clear()
    log.errors["first"] = [AWAY, BROKEN]
    for name in ("first", "second", "third"):
        log.add("ns/a", name)
    log.add("other/b", "fourth")
    assert log.writes.pending("ns") and log.writes.pending("other") and not log.writes.pending("n")
    log.gate.set()
    await until(lambda: len(log.done) == 4)
    assert [name for name in log.done if name != "fourth"] == ["first", "second", "third"]
    assert log.done[0] == "fourth", "it does not wait for the errors of another id"
    await until(lambda: not log.writes.pending("ns"))


async def test_the_last_status_counts_and_others_between_stay(log: Log) -> None:
    log.gate.clear()
    log.add("ns/a", "made")
    for number in range(3):
        log.add("ns/a", f"status-{number}", "status", replaces=True)
    log.add("ns/a", "request", "request", replaces=True)
    log.add("ns/a", "status-3", "status", replaces=True)
    log.gate.set()
    await until(lambda: not log.writes.pending("ns"))
    assert log.done == ["made", "status-2", "request", "status-3"]


async def test_a_status_that_fails_is_replaced_by_a_newer_one(log: Log) -> None:
    log.gate.clear()
    log.errors["old"] = [BROKEN] * 100
    log.add("ns/a", "old", "status", replaces=True)
    await asyncio.sleep(0)
    log.add("ns/a", "new", "status", replaces=True)
    log.gate.set()
    await until(lambda: log.done == ["new"])


@pytest.mark.parametrize("error", [FORBIDDEN, FULL], ids=["refused", "full"])
async def test_a_status_that_the_server_refuses_is_dropped_and_holds_up_nothing(log: Log, error: Exception) -> None:
    """As of a request that an agent has filled. What else is refused is tried on."""
    log.errors["status"] = [error] * 100
    log.errors["end"] = [error] * 10
    log.add("ns/a", "status", "status", replaces=True)
    log.add("ns/a", "end", "end")
    await until(lambda: log.done == ["end"])
    assert len(log.errors["status"]) == 100 - ordered_writes._MOST_REFUSALS


async def test_a_status_that_the_server_cannot_take_for_now_is_not_dropped(log: Log) -> None:
    log.errors["status"] = [AWAY, BROKEN, BUSY] * ordered_writes._MOST_REFUSALS
    log.add("ns/a", "status", "status", replaces=True)
    await until(lambda: log.done == ["status"])


async def test_what_is_gone_is_dropped_and_after_a_refusal_nothing_follows(log: Log) -> None:
    log.errors["gone"], log.errors["refused"] = [GONE], [WriteRefused("no")]
    for name in ("gone", "next", "refused", "never"):
        log.add("ns/a", name)
    await until(lambda: not log.writes.pending("ns"))
    assert (log.done, log.refused) == (["next"], ["ns/a: no"])
    log.leads = False
    log.add("ns/a", "later")
    await until(lambda: not log.writes.pending("ns"))
    assert log.done == ["next"]


async def test_of_a_flood_in_one_namespace_some_are_written_at_a_time_and_others_do_not_wait(log: Log) -> None:
    log.gate.clear()
    for number in range(100):
        log.add(f"flood/{number}", f"status {number}", "request", replaces=True, patient=True)
    log.add("flood/99", "newer status 99", "request", replaces=True, patient=True)
    log.add("flood/98", "end of 98", "end")
    log.add("calm/a", "another's")
    await asyncio.sleep(0)
    assert len(log.tasks) == ordered_writes._MOST_AT_A_TIME + 2
    log.gate.set()
    await until(lambda: len(log.done) == 102)
    assert "status 99" not in log.done and log.done.index("status 98") < log.done.index("end of 98")
    assert log.done.index("another's") < 20
    await until(lambda: not log.writes.pending("flood"))
    assert not log.writes._behind and not log.writes._waiting
