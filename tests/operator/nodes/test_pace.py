# SPDX-License-Identifier: Apache-2.0
"""How often a node is written."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.operator.nodes.pace import BURST, EVERY_MS, WritePace

HOUR_MS = 3_600_000


def test_a_node_that_flaps_all_day_is_written_a_few_times_an_hour() -> None:
    pace, writes, now_ms = WritePace(), list[int](), 1_700_000_000_000
    begin_ms = now_ms
    while now_ms < begin_ms + 24 * HOUR_MS:
        if pace.due_ms("n", now_ms) <= now_ms:
            pace.count("n", now_ms)
            writes.append((now_ms - begin_ms) // HOUR_MS)
        now_ms += 1_000
    by_hour = [writes.count(hour) for hour in range(24)]
    assert by_hour[0] <= BURST + HOUR_MS // EVERY_MS
    assert set(by_hour[1:]) == {HOUR_MS // EVERY_MS}


@settings(max_examples=100)
@given(st.lists(st.integers(-5_000, 2 * EVERY_MS), max_size=60))
def test_no_write_is_lost_and_none_too_early(pauses: list[int]) -> None:
    """The oracle counts the writes in each window that ends with a write."""
    pace, now_ms, written = WritePace(3, EVERY_MS), 10**12, list[int]()
    for pause in pauses:
        now_ms += pause
        due_ms = pace.due_ms("n", now_ms)
        assert now_ms <= due_ms <= now_ms + EVERY_MS
        if due_ms == now_ms:
            pace.count("n", now_ms)
            written.append(now_ms)
    if all(pause >= 0 for pause in pauses):
        for i in range(len(written)):
            window = [at for at in written[: i + 1] if written[i] - at < EVERY_MS]
            assert len(window) <= 3 + 1


def test_nodes_do_not_share_a_pace() -> None:
    pace = WritePace(1, EVERY_MS)
    pace.count("a", 0)
    assert pace.due_ms("a", 0) == EVERY_MS and pace.due_ms("b", 0) == 0
    pace.forget("a")
    assert pace.due_ms("a", 0) == 0
