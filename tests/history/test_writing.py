# SPDX-License-Identifier: Apache-2.0
"""What is collected is written once, in its order, also where a write fails."""

from __future__ import annotations

from dovetail.history.records import Gap, HistoryBatch, PodRecord
from dovetail.history.writing import Collected


def batch(until_ms: int, *pods: str) -> HistoryBatch:
    records = [PodRecord(uid, "default", uid, uid, submitted_ms=until_ms) for uid in pods]
    return HistoryBatch(until_ms, pods=records, gaps=[Gap(until_ms - 1, until_ms, "")])


def test_what_is_taken_is_forgotten() -> None:
    collected = Collected()
    collected.add(batch(1, "a"))
    taken = collected.take()
    assert [record.uid for record in taken.pods] == ["a"]
    assert (collected.size, collected.until_ms) == (0, 1)
    assert collected.take() == HistoryBatch(1, [], [], [], [], [])


def test_what_could_not_be_written_is_before_what_came_since() -> None:
    collected = Collected()
    collected.add(batch(1, "a", "b"))
    taken = collected.take()
    collected.add(batch(2, "b", "c"))
    collected.put_back(taken)
    again = collected.take()
    assert [(record.uid, record.submitted_ms) for record in again.pods] == [("a", 1), ("b", 2), ("c", 2)]
    assert [gap.end_ms for gap in again.gaps] == [1, 2]
    assert again.until_ms == 2
